//! Filters a search by file attributes, such as year and team.

use std::error::Error;

use windlass_search::{AttributeFilter, HybridWeights, Index, IndexDocument, RankingOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let index = Index::open(folder.path().join("contracts.index"))?;
    let contracts = [
        ("acme-2022.txt", 2022, "legal", "Acme may cancel the contract with thirty days of notice."),
        ("acme-2024.txt", 2024, "legal", "Acme may cancel the contract with ninety days of notice."),
        ("lunch.txt", 2024, "kitchen", "To cancel lunch, give notice by ten o'clock."),
    ];
    index.put_documents(contracts.map(|(name, year, team, text)| {
        IndexDocument::new(name, text).attribute("year", year).attribute("team", team)
    }))?;

    let current =
        AttributeFilter::and([AttributeFilter::gte("year", 2023), AttributeFilter::eq("team", "legal")]);
    let found = index.search("notice to cancel").filter(current).run()?;
    assert_eq!(found.hits.len(), 1);
    println!("{}: {}", found.hits[0].file_name, found.hits[0].text);

    // A filter in the JSON format of the hosted tool.
    let written = serde_json::json!({
        "type": "or",
        "filters": [
            {"type": "lt", "key": "year", "value": 2023},
            {"type": "in", "key": "team", "value": ["kitchen", "garden"]},
        ],
    });
    let found = index.search("notice to cancel").filter(serde_json::from_value(written)?).run()?;
    assert_eq!(found.hits.len(), 2);

    // BM25 only, with a minimum score.
    let ranking = RankingOptions {
        score_threshold: Some(0.5),
        hybrid_search: Some(HybridWeights { embedding_weight: 0.0, text_weight: 1.0 }),
        ..RankingOptions::default()
    };
    let found = index.search("lunch").ranking(ranking).run()?;
    assert_eq!(found.hits[0].file_name, "lunch.txt");
    println!("{:.2} {}", found.hits[0].score, found.hits[0].text);
    Ok(())
}

//! An agent that answers from files. The example uses a scripted model; any other model works the same way.

use std::error::Error;

use windlass::prelude::*;
use windlass_search::{AttributeFilter, Index, IndexDocument};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let index = Index::open(folder.path().join("handbook.index"))?;
    index.put_documents([
        IndexDocument::new("leave.md", "# Leave\n\n## Parents\n\nParents have sixteen weeks of leave.")
            .attribute("public", true),
        IndexDocument::new("pay.md", "# Pay\n\nParents among the directors have forty weeks of leave.")
            .attribute("public", false),
    ])?;

    let model = ScriptedModel::new([
        ScriptedResponse::call(
            "c1",
            "file_search",
            json!({ "queries": ["parental leave", "weeks of leave for parents"] }),
        ),
        ScriptedResponse::text("Sixteen weeks (leave.md)."),
    ]);
    let search = index.tool().max_results(3).filters(AttributeFilter::eq("public", true));
    let agent = Agent::new("clerk")
        .instructions("Answer from the handbook and name the file.")
        .model(model.clone())
        .tool(search);
    let answer = agent.run("How long is parental leave?").await?;
    println!("{}", answer.output_text()?);

    let shown = model.requests()[1].input_text().join("\n");
    println!("{shown}");
    assert!(shown.contains("sixteen weeks"), "the model was shown what was found");
    assert!(!shown.contains("forty weeks"), "and nothing that the filter keeps back");
    Ok(())
}

//! Searches local files without a service or an API key:
//! `cargo run -p windlass-search --example search_local_files -- FOLDER QUERY`.
//! Without arguments it creates a sample folder.

use std::error::Error;
use std::path::PathBuf;

use windlass_search::Index;

fn main() -> Result<(), Box<dyn Error>> {
    let own = tempfile::tempdir()?;
    let mut arguments = std::env::args().skip(1);
    let (folder, question) = match (arguments.next(), arguments.next()) {
        (Some(folder), Some(question)) => (PathBuf::from(folder), question),
        _ => {
            let folder = own.path().join("manuals");
            std::fs::create_dir(&folder)?;
            std::fs::write(
                folder.join("boiler.md"),
                "# Boiler\n\n## Start\n\nOpen the gas cock, then press the red button for five seconds.\n\n\
                 ## Maintenance\n\nDescale the heat exchanger every spring.\n",
            )?;
            std::fs::write(
                folder.join("door.txt"),
                "The front door locks by itself. The spare key is at number 12.",
            )?;
            std::fs::write(folder.join("photo.bin"), [0, 159, 146, 150])?;
            (folder, "when is the exchanger descaled?".to_owned())
        }
    };
    let index = Index::open(own.path().join("manuals.index"))?;
    let report = index.add_path(&folder).progress(|done| eprint!("\r{done}")).run()?;
    eprintln!();
    println!("{report}");

    for hit in index.search(question).max_results(3).run()?.hits {
        println!("\n{:.2}  {}, {}\n{}", hit.score, hit.path, hit.location, hit.text);
    }

    // A later refresh reads only the files that have changed.
    let later = index.refresh()?;
    println!("\n{later}");
    assert_eq!((later.added, later.changed, later.removed), (0, 0, 0));
    Ok(())
}

//! Writes the typed clients for Python and TypeScript from the OpenAPI description of the server:
//! `cargo run -p windlass-server --example generate_clients`. A test compares the files with the description.

mod description;
mod python;
mod typescript;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let operations = description::ApiDescription::read(&windlass_server::openapi_description());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clients");
    std::fs::write(folder.join("windlass_api.py"), python::write_client(&operations))?;
    std::fs::write(folder.join("windlass_api.ts"), typescript::write_client(&operations))
}

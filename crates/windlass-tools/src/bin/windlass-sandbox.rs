//! The sandbox helper as a separate program, for applications that do not start themselves as the helper.

fn main() {
    windlass_tools::sandbox::main_if_asked();
    eprintln!("windlass-sandbox restricts commands for other programs; it does nothing by itself");
    std::process::exit(2);
}

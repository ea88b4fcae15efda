//! The helper as a program of its own, for applications that do not want to start themselves again.

fn main() {
    windlass_tools::sandbox::main_if_asked();
    eprintln!("windlass-sandbox restricts commands for other programs; it does nothing by itself");
    std::process::exit(2);
}

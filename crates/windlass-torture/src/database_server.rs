//! A PostgreSQL server of the torture's own, on a free port of this machine, which is crashed and started again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A server, which stops when the value is dropped.
pub struct DatabaseServer {
    folder: PathBuf,
    programs: PathBuf,
    port: u16,
}

impl DatabaseServer {
    /// Starts a server in a folder.
    ///
    /// # Errors
    /// Returns the message of the error, also if PostgreSQL is not installed.
    pub fn start(folder: &Path) -> Result<Self, String> {
        let said = |error: std::io::Error| error.to_string();
        let programs = find_programs().ok_or("`initdb` is not in /usr/lib/postgresql/*/bin")?;
        std::fs::create_dir_all(folder).map_err(said)?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(said)?;
        let port = listener.local_addr().map_err(said)?.port();
        drop(listener);
        let server = Self { folder: folder.to_owned(), programs, port };
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder))?;
        }
        run(server.program("initdb").arg("-D").arg(server.data()).args(["-U", "windlass", "--auth=trust"]))?;
        server.resume()?;
        Ok(server)
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address of the database, by way of an address of this machine.
    pub fn address_by(address: SocketAddr) -> String {
        format!("postgres://windlass@{address}/postgres?sslmode=disable")
    }

    /// Crashes the server and starts it again: connections break, and transactions that were not committed are lost.
    ///
    /// # Errors
    /// Returns the message of the error.
    pub fn crash_and_resume(&self) -> Result<(), String> {
        self.stop()?;
        self.resume()
    }

    fn stop(&self) -> Result<(), String> {
        run(self.program("pg_ctl").arg("-D").arg(self.data()).args(["-m", "immediate", "-w", "stop"]))
    }

    fn resume(&self) -> Result<(), String> {
        let sockets = self.folder.display();
        // The server's process dies and not the machine, so that no write of it is lost without syncs either.
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={sockets} -c fsync=off -c max_connections=300",
            self.port
        );
        let log = self.folder.join("log");
        let mut command = self.program("pg_ctl");
        command.arg("-D").arg(self.data()).arg("-l").arg(log).arg("-o").arg(options);
        run(command.args(["-w", "-t", "300", "start"]))
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Returns a command of PostgreSQL, which refuses to run as root.
    fn program(&self, name: &str) -> Command {
        let path = self.programs.join(name);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        command.current_dir("/").env("LC_ALL", "C.UTF-8");
        command
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        self.stop().ok();
    }
}

fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut folders: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.into_iter().rev().find(|folder| folder.join("initdb").is_file())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{:?}: {}", command.get_program(), String::from_utf8_lossy(&output.stderr)))
}

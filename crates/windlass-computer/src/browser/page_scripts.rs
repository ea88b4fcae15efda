//! Scripts that are added to every document.

/// Name of the binding by which a page's permission requests reach us.
pub(super) const PERMISSION_BINDING: &str = "windlassPermission";

/// Renders drop-downs as part of the page, where they can be clicked, and hides the buttons that open pickers
/// outside of it. A date is typed instead.
pub(super) const WIDGET_SCRIPT: &str = r"(() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(`
        select:not([multiple], [size]), select[size='1']:not([multiple]) { appearance: base-select !important; }
        ::picker(select) { appearance: base-select !important; max-height: 60vh; overflow-y: auto; }
        input::-webkit-calendar-picker-indicator { display: none !important; }
    `);
    const adopt = root => {
        if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets = [...root.adoptedStyleSheets, sheet];
    };
    adopt(document);
    document.addEventListener('pointerdown', event => {
        for (const node of event.composedPath()) if (node instanceof ShadowRoot) adopt(node);
    }, true);
})()";

/// Holds a page's requests for permissions until they are answered. The permission itself is decided in the
/// browser; a page that circumvents this script is denied.
pub(super) const PERMISSION_SCRIPT: &str = r"(() => {
    const tell = globalThis.windlassPermission;
    if (typeof tell !== 'function') return;
    delete globalThis.windlassPermission;
    const waiting = new Map(), ask = name => new Promise(done => {
        const id = Math.random().toString(36).slice(2);
        waiting.set(id, done);
        tell(JSON.stringify({ name, id }));
    });
    Object.defineProperty(globalThis, 'windlassPermissionAnswered', {
        value: id => { const done = waiting.get(id); waiting.delete(id); if (done) done(); },
    });
    const wrap = (owner, method, name, later) => {
        const native = owner && owner[method];
        if (typeof native !== 'function') return;
        owner[method] = function (...given) {
            const wanted = typeof name === 'function' ? name(...given) : [name];
            if (!wanted.length) return native.apply(this, given);
            // One question after the other: a request for a camera and a microphone needs both.
            const asked = wanted.reduce((before, one) => before.then(() => ask(one)), Promise.resolve())
                .then(() => native.apply(this, given));
            return later ? asked : void asked;
        };
    };
    const geo = globalThis.Geolocation && Geolocation.prototype;
    wrap(geo, 'getCurrentPosition', 'geolocation');
    wrap(globalThis.Notification, 'requestPermission', 'notifications', true);
    const media = globalThis.MediaDevices && MediaDevices.prototype;
    const devices = wants => [wants && wants.video && 'camera', wants && wants.audio && 'microphone'].filter(Boolean);
    wrap(media, 'getUserMedia', devices, true);
    const clip = globalThis.Clipboard && Clipboard.prototype;
    wrap(clip, 'readText', 'clipboard-read', true);
    wrap(clip, 'read', 'clipboard-read', true);
})()";

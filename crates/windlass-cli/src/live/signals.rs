//! Ctrl-C and the wish of others that the process end.

use tokio::sync::watch;

/// How often somebody wanted this to stop.
pub(crate) struct Signals {
    interrupts: watch::Receiver<u64>,
    terminations: watch::Receiver<u64>,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// That the process end.
    Terminate,
}

impl Signals {
    /// Listens from now on: neither signal ends the process by itself any more.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let (interrupt, interrupts) = watch::channel(0);
        let (terminate, terminations) = watch::channel(0);
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            for (kind, count) in [(SignalKind::interrupt(), interrupt), (SignalKind::terminate(), terminate)]
            {
                let mut signals = signal(kind)?;
                tokio::spawn(async move {
                    while signals.recv().await.is_some() {
                        count.send_modify(|count| *count += 1);
                    }
                });
            }
        }
        #[cfg(not(unix))]
        tokio::spawn(async move {
            let _kept = terminate;
            while tokio::signal::ctrl_c().await.is_ok() {
                interrupt.send_modify(|count| *count += 1);
            }
        });
        Ok(Self { interrupts, terminations })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            Ok(()) = self.interrupts.changed() => Signal::Interrupt,
            Ok(()) = self.terminations.changed() => Signal::Terminate,
            else => std::future::pending().await,
        }
    }

    /// Takes notice of what came so far.
    pub(crate) fn forget(&mut self) {
        self.interrupts.mark_unchanged();
    }
}

//! Signals: Ctrl-C (SIGINT) and SIGTERM.

use tokio::sync::watch;

/// Counters of the received signals.
pub(crate) struct SignalCounter {
    interrupts: watch::Receiver<u64>,
    terminations: watch::Receiver<u64>,
}

/// A request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// Ctrl-C (SIGINT): cancel the run.
    Interrupt,
    /// SIGTERM: detach from the run and exit.
    Terminate,
}

impl SignalCounter {
    /// Installs the handlers. From then on neither signal ends the process by itself.
    pub(crate) fn install() -> std::io::Result<Self> {
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

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> StopSignal {
        tokio::select! {
            Ok(()) = self.interrupts.changed() => StopSignal::Interrupt,
            Ok(()) = self.terminations.changed() => StopSignal::Terminate,
            else => std::future::pending().await,
        }
    }

    /// Discards the interrupts received so far.
    pub(crate) fn discard_interrupts(&mut self) {
        self.interrupts.mark_unchanged();
    }
}

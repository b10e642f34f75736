//! The service: starts the loops, watches over them, stops them in order.

use std::sync::Arc;
use std::time::Duration;

use bellwether_store::{Ledger, Store};
use bellwether_telemetry::metrics;
use tokio_util::sync::CancellationToken;

use crate::calls::{back_off, bounded, rest};
use crate::clock::{BootClock, SystemBootClock};
use crate::gauges::Meter;
use crate::handle::{Handle, Shared};
use crate::holds::Watch;
use crate::leadership::{Leadership, check_partitions};
use crate::loops::Loops;
use crate::planner::Planner;
use crate::progress::Loop;
use crate::sweeps::Sweeper;
use crate::terms::Phase;
use crate::{Error, Options, Waker, behind, watchdog};

/// A ticker: one of several, which lead the partitions among them. All that matters of it is in the ledger; it
/// may be killed at any time.
pub struct Ticker {
    store: Arc<dyn Store>,
    lease_store: Arc<dyn Store>,
    waker: Arc<dyn Waker>,
    shared: Arc<Shared>,
}

impl Ticker {
    /// A ticker that plans and sweeps through `store` and holds its term through
    /// `lease_store`, a second connection to the same ledger that nothing else may use.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if the options make no sense.
    pub fn new(
        store: Arc<dyn Store>,
        lease_store: Arc<dyn Store>,
        waker: Arc<dyn Waker>,
        options: Options,
    ) -> Result<Self, Error> {
        Self::with_clock(
            store,
            lease_store,
            waker,
            options,
            Arc::new(SystemBootClock),
        )
    }

    /// As [`Ticker::new`], with a boot clock of the caller's.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if the options make no sense.
    pub fn with_clock(
        store: Arc<dyn Store>,
        lease_store: Arc<dyn Store>,
        waker: Arc<dyn Waker>,
        options: Options,
        clock: Arc<dyn BootClock>,
    ) -> Result<Self, Error> {
        options.validate()?;
        let shared = Arc::new(Shared::new(options, clock));
        Ok(Self {
            store,
            lease_store,
            waker,
            shared,
        })
    }

    /// A handle to look at the ticker with.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.shared))
    }

    /// Ticks until `shutdown`, then finishes the statements in flight, resigns and ends. An
    /// unreachable ledger is waited for. Dropping the future cuts everything off, as a kill
    /// would: the lease runs out by itself.
    ///
    /// # Errors
    ///
    /// A partition count that differs from the ledger's, a ledger of another schema, and a
    /// loop that panicked, ended or hangs: the process should end and be started again.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let ended = match self.read_ledger(&shutdown).await {
            Ok(Some(ledger)) => self.supervise(&ledger, &shutdown).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        shared.enter(Phase::Stopped);
        ended
    }

    /// The ledger, if the ticker was not asked to stop first.
    async fn read_ledger(&self, shutdown: &CancellationToken) -> Result<Option<Ledger>, Error> {
        let options = &self.shared.options;
        let mut failures = 0;
        while !shutdown.is_cancelled() {
            let call = self.store.ledger();
            match bounded("read the ledger's identity", options.call_timeout, call).await {
                Ok(ledger) => {
                    check_partitions(ledger.partition_count, options.partition_count)?;
                    return Ok(Some(ledger));
                }
                Err(error) if error.is_transient() => {
                    failures += 1;
                    tracing::warn!(%error, failures, "the ledger is not there yet");
                    rest(shutdown, back_off(failures, options.standby_poll)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn supervise(self, ledger: &Ledger, shutdown: &CancellationToken) -> Result<(), Error> {
        let Self {
            store,
            lease_store,
            waker,
            shared,
        } = self;
        tracing::info!(holder = shared.holder, ledger = %ledger.id, "the ticker starts");
        metrics::announce(metrics::Role::Ticker);
        shared.progress.start(shared.clock.now());
        shared.enter(Phase::Running);

        let (stop_work, stop_leading) = (CancellationToken::new(), CancellationToken::new());
        let (mut work, mut leading) = (Loops::default(), Loops::default());
        let sweeper = Sweeper {
            store: Arc::clone(&store),
            waker: Arc::clone(&waker),
            shared: Arc::clone(&shared),
        };
        for sweep in Sweeper::LOOPS {
            let (sweeper, stop) = (sweeper.clone(), stop_work.clone());
            work.spawn(sweep, async move {
                sweeper.run(sweep, stop).await;
                Ok(())
            });
        }
        let meter = Meter {
            store: Arc::clone(&store),
            shared: Arc::clone(&shared),
            differ: false,
            holds: Watch::default(),
            unread: false,
        };
        let stop = stop_work.clone();
        work.spawn(Loop::Gauges, async move {
            meter.run(stop).await;
            Ok(())
        });
        let planner = Planner {
            store,
            waker,
            shared: Arc::clone(&shared),
            behind: behind::Watch::default(),
        };
        let stop = stop_work.clone();
        work.spawn(Loop::Planning, async move {
            planner.run(stop).await;
            Ok(())
        });
        let stop = stop_leading.clone();
        let leadership = Leadership::new(lease_store, Arc::clone(&shared), ledger, stop);
        leading.spawn(Loop::Leadership, leadership.run());

        let failed = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            error = work.failure() => Err(error),
            error = leading.failure() => Err(error),
            error = watchdog::stalled(&shared) => Err(error),
        };
        if let Err(error) = &failed {
            tracing::error!(%error, "the ticker ends");
            if let Some(name) = error.broken_loop() {
                metrics::count_loop_failure(metrics::Role::Ticker, name);
            }
        }
        // The term is given back only when nothing plans any more.
        let patience = shared.options.call_timeout + Duration::from_secs(1);
        stop_work.cancel();
        let worked = work.finish(patience).await;
        stop_leading.cancel();
        let led = leading.finish(patience).await;
        failed.and(worked).and(led)
    }
}

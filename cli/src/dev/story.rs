//! The demo: reports and one-shots at the same time, and a worker killed in the second report.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bellwether_client::{NewSchedule, Payload, Timing, Waited};
use bellwether_schemas::state::State;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::count::count;
use super::keys::Keys;
use super::kill::Kill;
use super::report::Report;
use super::{Dev, publisher};
use crate::demo::report::{Request, SHARDS};
use crate::demo::{QUEUE, book};
use crate::exit::{FAILED, Failure, Result};

const SCHEDULE: &str = "nightly-report";
const EVERY: Duration = Duration::from_secs(20);
/// Opening the book costs more than a look at the ledger.
const BOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// With `--exit-after`, a demo that has not ended after this long per report has failed.
const REPORT_MAX: Duration = Duration::from_mins(3);

/// What happened.
pub(crate) struct Story {
    roots: Vec<PathBuf>,
    schedule: Uuid,
    /// The fires, oldest first.
    fires: Vec<Uuid>,
    /// Per finished report: whether it equals the independent count.
    pub(crate) reports: Vec<bool>,
    pub(crate) kills: Vec<Kill>,
    pub(crate) booked: book::Totals,
    pub(crate) published: bool,
    /// Ends by itself after so many reports; none = on a signal.
    pub(crate) exit_after: Option<u32>,
    unregistered: bool,
    started: Instant,
    book_looked_at: Instant,
}

/// Tells the story until it ends by itself or on a signal.
pub(crate) async fn run(
    dev: &mut Dev,
    roots: Vec<PathBuf>,
    exit_after: Option<u32>,
) -> Result<Story> {
    let shutdown = crate::role::shutdown()?;
    let mut story = tokio::select! {
        story = Story::begin(dev, roots, exit_after) => story?,
        () = shutdown.cancelled() => return Err(Failure::new(130, "stopped before the demo began")),
    };
    let mut keys = Keys::open();
    let mut publisher = tokio::spawn(publisher::publish(dev.nats.url(), dev.subjects.clone()));
    while !story.is_over(&shutdown)? {
        story.look(dev, &mut publisher).await?;
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            key = keys.next() => {
                if key == b'k' {
                    story.kill_by_hand(dev).await?;
                }
            }
        }
    }
    publisher.abort();
    if shutdown.is_cancelled() {
        story.exit_after = None;
    }
    if !story.unregistered {
        dev.client.unregister(SCHEDULE).await?;
    }
    dev.screen.status(&[])?;
    Ok(story)
}

impl Story {
    async fn begin(dev: &mut Dev, roots: Vec<PathBuf>, exit_after: Option<u32>) -> Result<Self> {
        let roots_file = dev.folder.join("roots.txt");
        let mut list = Vec::new();
        for root in &roots {
            list.extend_from_slice(root.as_os_str().as_bytes());
            list.push(b'\n');
        }
        std::fs::write(&roots_file, list)?;
        book::totals(&dev.folder.join("book.db"))
            .await
            .map_err(failed)?;

        let counted = count(&roots).await?;
        dev.screen.line(&format!(
            "\n{SCHEDULE}: {SHARDS} shards over {} folder(s), {} files, {:.1} MB, at once and then \
             every {} s",
            roots.len(),
            counted.files,
            megabytes(counted.bytes),
            EVERY.as_secs()
        ))?;
        dev.screen.line(&format!(
            "book-entry: {} one-shots published {} times to {}",
            publisher::ENTRIES,
            publisher::PUBLISHES,
            dev.subjects.submit(QUEUE, "book-entry")
        ))?;
        if dev.screen.is_terminal() {
            dev.screen
                .line("press k to kill a worker, Ctrl-C to end\n")?;
        }

        let payload = serde_json::to_vec(&Request { roots_file }).map_err(failed)?;
        let period_ms = i64::try_from(EVERY.as_millis()).unwrap_or(i64::MAX);
        let mut new = NewSchedule::new(
            SCHEDULE,
            Timing::Every {
                period_ms,
                anchor: None,
            },
        );
        QUEUE.clone_into(&mut new.queue);
        new.payload = Payload::json(payload);
        new.shard_total = SHARDS;
        new.policy.timeout = Duration::from_mins(10);
        let schedule = dev.client.register(&new).await?;
        let first = dev.client.trigger(SCHEDULE).await?;
        dev.screen
            .event(&format!("report 1 fired (fire {first})"))?;
        Ok(Self {
            roots,
            schedule,
            fires: vec![first],
            reports: Vec::new(),
            kills: Vec::new(),
            booked: book::Totals {
                entries: 0,
                numbers: 0,
                cents: 0,
            },
            published: false,
            exit_after,
            unregistered: false,
            started: Instant::now(),
            book_looked_at: Instant::now(),
        })
    }

    fn is_over(&self, shutdown: &CancellationToken) -> Result<bool> {
        if shutdown.is_cancelled() {
            return Ok(true);
        }
        let Some(wanted) = self.exit_after else {
            return Ok(false);
        };
        let reports = self.reports.len() >= wanted as usize;
        let books = self.published && self.booked.entries >= publisher::ENTRIES;
        let kills = !self.kills.is_empty() && self.kills.iter().all(Kill::is_settled);
        if reports && books && kills {
            return Ok(true);
        }
        if self.started.elapsed() > REPORT_MAX * wanted {
            return Err(Failure::new(
                FAILED,
                format!(
                    "the demo had not ended after {} s: {} of {wanted} reports, {} of {} entries \
                     booked, {} worker(s) killed",
                    self.started.elapsed().as_secs(),
                    self.reports.len(),
                    self.booked.entries,
                    publisher::ENTRIES,
                    self.kills.len()
                ),
            ));
        }
        Ok(false)
    }

    /// One look at everything.
    async fn look(&mut self, dev: &mut Dev, publisher: &mut JoinHandle<Result<()>>) -> Result<()> {
        dev.look_after().await?;
        if !self.published && publisher.is_finished() {
            publisher.await.map_err(failed)??;
            self.published = true;
            dev.screen.event(&format!(
                "{} entries published {} times",
                publisher::ENTRIES,
                publisher::PUBLISHES
            ))?;
        }
        self.find_fires(dev).await?;
        self.kill_once(dev).await?;
        for kill in &mut self.kills {
            kill.look(dev.store.as_ref(), &mut dev.screen).await?;
        }
        self.finish_report(dev).await?;
        self.look_at_the_book(dev).await?;
        let status = self.status(dev).await?;
        Ok(dev.screen.status(&status)?)
    }

    /// Kills a worker in the second report; in a later one, if the second could not be hit.
    /// With `--exit-after` nothing more is fired once there was a kill and enough has fired.
    async fn kill_once(&mut self, dev: &mut Dev) -> Result<()> {
        let unfinished = self.fires.iter().skip(self.reports.len().max(1));
        for &fire in unfinished {
            if self.kills.is_empty() {
                self.kills.extend(dev.kill_a_worker(Some(fire)).await?);
            }
        }
        let enough = self
            .exit_after
            .is_some_and(|wanted| self.fires.len() >= wanted as usize);
        if enough && !self.kills.is_empty() && !self.unregistered {
            dev.client.unregister(SCHEDULE).await?;
            self.unregistered = true;
        }
        Ok(())
    }

    async fn look_at_the_book(&mut self, dev: &mut Dev) -> Result<()> {
        if self.book_looked_at.elapsed() < BOOK_EVERY {
            return Ok(());
        }
        self.book_looked_at = Instant::now();
        let before = self.booked.entries;
        match book::totals(&dev.folder.join("book.db")).await {
            Ok(booked) => self.booked = booked,
            // Only a look: the next one is half a second away, and the end reads it anew.
            Err(error) => tracing::debug!(%error, "the book was not read"),
        }
        if before < publisher::ENTRIES && self.booked.entries >= publisher::ENTRIES {
            dev.screen
                .event(&format!("{} entries booked", self.booked.entries))?;
        }
        Ok(())
    }

    async fn find_fires(&mut self, dev: &mut Dev) -> Result<()> {
        let mut fires = dev.store.fires(self.schedule, 1_000).await?;
        fires.sort_by_key(|fire| fire.planned_at);
        for fire in fires {
            if !self.fires.contains(&fire.id) {
                self.fires.push(fire.id);
                let number = self.fires.len();
                dev.screen
                    .event(&format!("report {number} fired (fire {})", fire.id))?;
            }
        }
        Ok(())
    }

    /// The oldest unfinished report, if its shards have all ended.
    async fn finish_report(&mut self, dev: &mut Dev) -> Result<()> {
        let Some(&fire) = self.fires.get(self.reports.len()) else {
            return Ok(());
        };
        let shards = dev.store.fire_results(fire).await?;
        if shards.is_empty() || !shards.iter().all(|shard| shard.state.is_terminal()) {
            return Ok(());
        }
        let report = Report::of(&Waited { shards })?;
        let counted = count(&self.roots).await?;
        let equal = report.equals(counted);
        let number = self.reports.len() + 1;
        report.write(
            &PathBuf::from("report.md"),
            u32::try_from(number).unwrap_or(0),
            counted,
        )?;
        let total = report.slice.total();
        let unreadable = report.slice.unreadable.files;
        dev.screen.event(&format!(
            "report {number}: {} files, {:.1} MB in {SHARDS} shards{}; find counts {} files, {:.1} MB: {}{}",
            total.files,
            megabytes(total.bytes),
            if unreadable == 0 { String::new() } else { format!(" and {unreadable} unreadable") },
            counted.files,
            megabytes(counted.bytes),
            if equal { "equal" } else { "DIFFERENT" },
            if report.steady { "" } else { " (the list of paths changed between shards)" }
        ))?;
        self.reports.push(equal);
        Ok(())
    }

    async fn kill_by_hand(&mut self, dev: &mut Dev) -> Result<()> {
        match dev.kill_a_worker(None).await? {
            Some(kill) => self.kills.push(kill),
            None => dev.screen.event("no worker runs anything right now")?,
        }
        Ok(())
    }

    async fn status(&self, dev: &Dev) -> Result<Vec<String>> {
        if !dev.screen.is_terminal() {
            return Ok(Vec::new());
        }
        let counts = dev.store.state_counts().await?;
        let count = |state: State| {
            counts
                .iter()
                .find(|(s, _)| *s == state)
                .map_or(0, |(_, n)| *n)
        };
        let waiting = count(State::Pending) + count(State::Retrying);
        let mut lines = vec![
            String::new(),
            format!(
                "  executions  {waiting} waiting   {} running   {} succeeded   {} failed",
                count(State::Running),
                count(State::Succeeded),
                count(State::Failed)
            ),
            format!(
                "  reports     {} of {} finished     book  {} of {} entries",
                self.reports.len(),
                self.fires.len(),
                self.booked.entries,
                publisher::ENTRIES
            ),
        ];
        for role in &dev.roles {
            let usage = role.usage();
            let pid = role
                .pid()
                .map_or_else(|| "ended".to_owned(), |pid| format!("pid {pid}"));
            lines.push(format!(
                "  {:<11} {pid:<12} {:>6.1} s CPU {:>6.1} MB",
                role.name,
                usage.cpu.as_secs_f64(),
                megabytes(usage.peak_rss)
            ));
        }
        Ok(lines)
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(FAILED, error.to_string())
}

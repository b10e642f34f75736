//! What becomes of effects that must not be repeated blindly, when their report is lost.

use std::future::pending;
use std::time::Duration;

use bellwether_client::{NewExecution, Payload};
use bellwether_schemas::ids;
use bellwether_schemas::state::{OnLost, State, Verdict};
use bellwether_store::probes::{Decided, Ruling};
use bellwether_worker::{Context, Job, Lease, ProbeContext, Probed};
use tokio::sync::watch;
use uuid::Uuid;

use crate::blackhole::Blackhole;
use crate::cluster::{Cluster, Running, Seen, run};
use crate::commit_in::Books;

on_both_stores!(
    r86_a_lost_report_is_unknown_and_its_probe_finds_the_effect,
    what_a_probe_finds_undone_is_done_once_more,
    r93_the_domains_own_ledger_has_the_last_word,
    a_probe_that_cannot_tell_leaves_it_to_an_operator,
    a_build_without_the_probe_leaves_it_to_one_that_has_it,
    a_probe_that_is_stopped_is_asked_by_another_worker,
    a_late_result_wins_over_a_probe_that_is_still_asking,
);

/// A lease of a second.
fn short() -> Lease {
    Lease {
        ttl: Duration::from_secs(1),
        renew_every: Duration::from_millis(200),
        fence_after: Duration::from_millis(700),
        cancel_after: Duration::from_secs(2),
        ..Lease::default()
    }
}

impl Cluster {
    /// A one-shot of `job` whose effect must not be repeated blindly.
    async fn enqueue_once_only(&self, job: &str) -> Uuid {
        let mut new = NewExecution::new(job, Payload::json("7"));
        new.policy.on_lost = OnLost::Unknown;
        self.client.enqueue(&new).await.unwrap().execution_id()
    }

    /// Runs `job` until its handler has noted its effect, and loses the worker then.
    async fn lost_after(&self, job: Job, effects: &Seen<Uuid>) -> Uuid {
        let worker = run(self.worker().register(job.clone()).lease(short()));
        let id = self.enqueue_once_only(job.name()).await;
        until_noted(&worker, effects).await;
        worker.abandon();
        self.until_state(id, State::Unknown).await;
        id
    }
}

async fn until_noted(worker: &Running, effects: &Seen<Uuid>) {
    worker
        .until("the effect", |_| !effects.all().is_empty())
        .await;
}

/// Its first attempt has its effect and never says so.
fn pay(effects: &Seen<Uuid>) -> Job {
    let effects = effects.clone();
    Job::new("pay", move |ctx: Context| {
        let effects = effects.clone();
        async move {
            effects.note(ctx.operation_id());
            if ctx.generation() == 1 {
                pending::<()>().await;
            }
            Ok::<_, String>("paid")
        }
    })
    .on_lost(OnLost::Unknown)
}

async fn r86_a_lost_report_is_unknown_and_its_probe_finds_the_effect(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let booked = Seen::default();
    let job = {
        let (write, read, booked) = (books.clone(), books.clone(), booked.clone());
        Job::new("book", move |ctx: Context| {
            let (books, booked) = (write.clone(), booked.clone());
            async move {
                // The business row is committed; the report is dropped with the worker.
                books.book_alone(&ctx).await?;
                booked.note(ctx.operation_id());
                pending::<()>().await;
                Ok::<_, bellwether_worker::BoxError>(())
            }
        })
        .on_lost(OnLost::Unknown)
        .probe(move |ctx: ProbeContext| {
            let books = read.clone();
            async move {
                assert_eq!(ctx.payload::<u64>().ok(), Some(7), "what the handler got");
                let found = books.has(ctx.operation_id()).await?;
                let probed = if found { Probed::Done } else { Probed::NotDone };
                Ok::<_, bellwether_worker::BoxError>(probed)
            }
        })
    };
    let id = cluster.lost_after(job.clone(), &booked).await;
    let second = run(cluster.worker().register(job).lease(short()));
    let view = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((view.generation, view.attempt), (1, 1), "run once");
    assert_eq!(books.booked().await, [1], "one business write");
    let story = cluster.story(id).await;
    let said: Vec<_> = story
        .verdicts
        .iter()
        .map(|verdict| (verdict.verdict, verdict.became))
        .collect();
    assert_eq!(said, [(Verdict::Done, State::Succeeded)]);
    let stats = second.stop().await;
    assert_eq!((stats.probed["done"], stats.claimed), (1, 0));
    cluster.until_streams_are_empty().await;
    cluster.audit().await;
}

async fn what_a_probe_finds_undone_is_done_once_more(cluster: Cluster) {
    let (effects, asked) = (Seen::default(), Seen::default());
    let job = {
        let (effects, asked) = (effects.clone(), asked.clone());
        Job::new("pay", move |ctx: Context| {
            let effects = effects.clone();
            async move {
                effects.note(ctx.operation_id());
                if ctx.generation() == 1 {
                    pending::<()>().await;
                }
                Ok::<_, String>("paid")
            }
        })
        .on_lost(OnLost::Unknown)
        .probe(move |ctx: ProbeContext| {
            let asked = asked.clone();
            async move {
                asked.note(ctx.probe_no());
                // The first time the other system is away.
                if ctx.probe_no() == 1 {
                    return Err("no route to the bank");
                }
                Ok(Probed::NotDone)
            }
        })
    };
    let id = cluster.lost_after(job.clone(), &effects).await;
    let second = run(cluster.worker().register(job).lease(short()));
    let view = cluster.until_state(id, State::Succeeded).await;
    assert_eq!((view.generation, view.attempt), (2, 2), "and charged");
    assert_eq!(asked.all(), [1, 2]);
    let story = cluster.story(id).await;
    let said: Vec<_> = story
        .verdicts
        .iter()
        .map(|verdict| (verdict.verdict, verdict.became))
        .collect();
    assert_eq!(
        said,
        [
            (Verdict::InProgress, State::Unknown),
            (Verdict::NotDone, State::Retrying)
        ]
    );
    assert!(story.verdicts[0].note.contains("no route to the bank"));
    second.stop().await;
    cluster.audit().await;
}

/// The platform, told by an operator, says "again"; the business's own row says "done".
async fn r93_the_domains_own_ledger_has_the_last_word(cluster: Cluster) {
    let books = Books::of(&cluster.database).await;
    let booked = Seen::default();
    let job = {
        let (books, booked) = (books.clone(), booked.clone());
        Job::new("book", move |ctx: Context| {
            let (books, booked) = (books.clone(), booked.clone());
            async move {
                let new = books.book_alone(&ctx).await?;
                booked.note(ctx.operation_id());
                if ctx.generation() == 1 {
                    pending::<()>().await;
                }
                Ok::<_, bellwether_worker::BoxError>(if new { "booked" } else { "was booked" })
            }
        })
        .on_lost(OnLost::Unknown)
    };
    let id = cluster.lost_after(job.clone(), &booked).await;
    let ruling = Ruling {
        execution_id: id,
        token: ids::fresh(),
        verdict: Verdict::NotDone,
        reason: "I think it was not done".to_owned(),
    };
    let answer = cluster.ledger.resolve(&ruling).await.unwrap();
    assert_eq!(answer, Decided::Accepted(State::Retrying));
    let second = run(cluster.worker().register(job).lease(short()));
    cluster.until_state(id, State::Succeeded).await;
    let story = cluster.story(id).await;
    assert_eq!(story.output.unwrap().bytes, br#""was booked""#);
    assert_eq!(story.execution.generation, 2, "the platform did it again");
    assert_eq!(books.booked().await, [1], "and the domain did not");
    second.stop().await;
    cluster.audit().await;
}

async fn a_probe_that_cannot_tell_leaves_it_to_an_operator(cluster: Cluster) {
    let silent = async |_: ProbeContext| pending::<Probed>().await;
    let broken = async |ctx: ProbeContext| {
        assert_eq!(ctx.probe_no(), 0, "a fault of the probe");
        Probed::Done
    };
    let effects = Seen::default();
    let cases = [
        (pay(&effects), 60, "the job has no probe"),
        (pay(&effects).probe(silent), 1, "no answer within 1s"),
        (pay(&effects).probe(broken), 60, "a fault of the probe"),
    ];
    for (job, allowed, why) in cases {
        let effects = Seen::default();
        let lost = pay(&effects);
        let id = cluster.lost_after(lost, &effects).await;
        let second = run(cluster
            .worker()
            .register(job)
            .lease(short())
            .probe_timeout(Duration::from_secs(allowed)));
        second
            .until("it says so", |stats| {
                stats.probed.get("cannot_tell") == Some(&1) && stats.running == 0
            })
            .await;
        let story = cluster.story(id).await;
        assert_eq!(story.execution.state, State::Unknown);
        assert!(story.execution.escalated_at.is_some(), "an operator's");
        let note = &story.verdicts[0].note;
        assert!(note.contains(why), "{note}");
        let ruling = Ruling {
            execution_id: id,
            token: ids::fresh(),
            verdict: Verdict::Done,
            reason: "the bank says so".to_owned(),
        };
        let answer = cluster.ledger.resolve(&ruling).await.unwrap();
        assert_eq!(answer, Decided::Accepted(State::Succeeded));
        second.stop().await;
    }
    cluster.audit().await;
}

/// In the middle of a rolling deployment. The newer worker is there and has no slot free; what the
/// older one is asked meanwhile is no word about the execution.
async fn a_build_without_the_probe_leaves_it_to_one_that_has_it(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let busy = Job::new("busy", move || {
        let mut wait = wait.clone();
        async move {
            let _gone = wait.wait_for(|go| *go).await;
            Ok::<_, String>(())
        }
    });
    let (effects, asked) = (Seen::default(), Seen::default());
    let older = pay(&effects);
    let newer = {
        let asked = asked.clone();
        pay(&effects).probe(move |ctx: ProbeContext| {
            asked.note(ctx.probe_no());
            std::future::ready(Probed::Done)
        })
    };
    let newer = cluster.worker().register(newer).register(busy);
    let newer = run(newer.max_concurrent(1).prefetch(0));
    cluster.enqueue("busy", 1).await;
    newer
        .until("its slot is taken", |stats| stats.running == 1)
        .await;
    let id = cluster.lost_after(older.clone(), &effects).await;
    let older = run(cluster.worker().register(older).lease(short()));
    older
        .until("it was asked", |stats| stats.probes_passed_on > 0)
        .await;
    let story = cluster.story(id).await;
    let view = &story.execution;
    assert_eq!((view.state, view.escalated_at), (State::Unknown, None));
    assert!(story.verdicts.is_empty());
    let stats = older.stop().await;
    assert!(stats.probed.is_empty(), "{stats:#?}");

    go.send(true).unwrap();
    cluster.until_state(id, State::Succeeded).await;
    assert_eq!(asked.all(), [1], "the first that was made");
    assert_eq!(effects.all().len(), 1);
    let said = cluster.story(id).await.verdicts;
    assert_eq!((said.len(), said[0].verdict), (1, Verdict::Done));
    newer.stop().await;
    cluster.audit().await;
}

async fn a_probe_that_is_stopped_is_asked_by_another_worker(cluster: Cluster) {
    let (effects, asked) = (Seen::default(), Seen::default());
    let job = |patient: bool| {
        let asked = asked.clone();
        pay(&effects).probe(move |ctx: ProbeContext| {
            let asked = asked.clone();
            async move {
                asked.note(ctx.probe_no());
                if patient {
                    ctx.cancelled().await;
                    pending::<()>().await;
                }
                Probed::Done
            }
        })
    };
    let id = cluster.lost_after(job(true), &effects).await;
    let first = run(cluster
        .worker()
        .register(job(true))
        .lease(short())
        .drain(Duration::from_secs(1)));
    first.until("asked", |_| asked.all().len() == 1).await;
    let stats = first.stop().await;
    assert_eq!(stats.probed.len(), 0, "it said nothing");
    let second = run(cluster.worker().register(job(false)).lease(short()));
    cluster.until_state(id, State::Succeeded).await;
    assert_eq!(asked.all(), [1, 1], "the first was given back");
    assert_eq!(cluster.story(id).await.verdicts.len(), 1);
    second.stop().await;
    cluster.audit().await;
}

async fn a_late_result_wins_over_a_probe_that_is_still_asking(cluster: Cluster) {
    let (go, wait) = watch::channel(false);
    let (answer, answers) = watch::channel(false);
    let effects = Seen::default();
    let job = {
        let (effects, wait) = (effects.clone(), wait.clone());
        Job::new("pay", move |ctx: Context| {
            let (effects, mut wait) = (effects.clone(), wait.clone());
            async move {
                effects.note(ctx.operation_id());
                let _gone = wait.wait_for(|go| *go).await;
                Ok::<_, String>("paid")
            }
        })
        .on_lost(OnLost::Unknown)
        .probe(move |_: ProbeContext| {
            let mut answers = answers.clone();
            async move {
                let _gone = answers.wait_for(|answer| *answer).await;
                Probed::NotDone
            }
        })
    };
    let first = run(cluster.worker().register(job.clone()).lease(short()));
    let id = cluster.enqueue_once_only("pay").await;
    until_noted(&first, &effects).await;
    // Its session is taken away while it works; another worker asks what became of it.
    let session = cluster.ledger.sessions(10).await.unwrap()[0].id;
    cluster.ledger.close_session(session).await.unwrap();
    cluster.until_state(id, State::Unknown).await;
    let probing = |stats: &bellwether_worker::Stats| stats.running == 2;
    first.until("it is probed, beside", probing).await;
    go.send(true).unwrap();
    cluster.until_state(id, State::Succeeded).await;
    answer.send(true).unwrap();
    first
        .until("the probe is late", |stats| stats.fenced == 1)
        .await;
    let story = cluster.story(id).await;
    assert_eq!(story.execution.generation, 1);
    assert_eq!(story.output.unwrap().bytes, br#""paid""#);
    assert!(story.verdicts.is_empty());
    assert_eq!(effects.all().len(), 1);
    first.stop().await;
    cluster.audit().await;
}

/// Between a worker and the database every packet is swallowed while its handler is at work. Both
/// ways out: a probe finds the effect, and the late result is refused; or nobody can tell, and the
/// late result settles it. Never is it done twice, never succeeded twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p61_a_worker_that_lost_the_database_has_one_effect_and_one_success() {
    let Some(cluster) = Cluster::on_postgres().await else {
        return;
    };
    for probed in [true, false] {
        let (go, wait) = watch::channel(false);
        let effects = Seen::default();
        let job = || {
            let (effects, wait) = (effects.clone(), wait.clone());
            let found = effects.clone();
            let job = Job::new("pay", move |ctx: Context| {
                let (effects, mut wait) = (effects.clone(), wait.clone());
                async move {
                    effects.note(ctx.operation_id());
                    let _gone = wait.wait_for(|go| *go).await;
                    Ok::<_, String>("paid")
                }
            })
            .on_lost(OnLost::Unknown);
            if !probed {
                return job;
            }
            job.probe(move |ctx: ProbeContext| {
                let found = found.all().contains(&ctx.operation_id());
                std::future::ready(if found { Probed::Done } else { Probed::NotDone })
            })
        };
        let hole = Blackhole::before(&cluster.database).await;
        let cut_off = run(cluster
            .worker()
            .database(hole.database())
            .register(job())
            .lease(short()));
        let id = cluster.enqueue_once_only("pay").await;
        until_noted(&cut_off, &effects).await;
        hole.swallow(true);
        cluster.until_state(id, State::Unknown).await;
        let healthy = run(cluster.worker().register(job()).lease(short()));
        let word = if probed { "done" } else { "cannot_tell" };
        healthy
            .until("asked", |stats| stats.probed.get(word) == Some(&1))
            .await;
        let between = cluster.execution(id).await.state;
        let expected = if probed {
            State::Succeeded
        } else {
            State::Unknown
        };
        assert_eq!(between, expected);
        hole.swallow(false);
        go.send(true).unwrap();
        if probed {
            cut_off
                .until("its result is refused", |stats| stats.fenced == 1)
                .await;
        }
        let view = cluster.until_state(id, State::Succeeded).await;
        assert_eq!((view.generation, view.attempt), (1, 1));
        assert_eq!(effects.all().len(), 1, "one effect");
        let story = cluster.story(id).await;
        assert_eq!(story.fenced.len(), usize::from(probed));
        healthy.stop().await;
        cut_off.stop().await;
        cluster.audit().await;
    }
}

//! Consumers: what is right is left alone, what is missing is made.

use std::collections::{HashMap, HashSet};

use async_nats::jetstream::{Context, consumer};
use bellwether_schemas::subject::Subjects;
use futures_util::{FutureExt, StreamExt};

use super::api::{self, Write};
use super::diff::{self, Difference};
use super::flow::{Error, Mode, unchangeable};
use super::settings::{self, Consumer, StreamLimits};

/// Consumers declared at the same time. As many without an answer in a row, and the way to the
/// server is taken for gone.
pub(super) const AT_ONCE: usize = 8;

/// The field in which a relay at work lets a consumer differ.
const DRIFTS: &str = "ack_wait";

/// Stream and name of a consumer.
pub(crate) type Key = (String, String);

/// What a survey has found.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The consumers that are not known to be there and right.
    pub(crate) rest: Vec<Consumer>,
    /// What differs and stays so; see [`Mode::Keep`].
    pub(crate) drifted: Vec<Error>,
}

/// What became of consumers that were to be declared. What is named nowhere was not tried.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    /// There and right.
    pub(crate) made: HashSet<Key>,
    /// Refused, or without an answer.
    pub(crate) failed: Vec<(Consumer, Error)>,
    /// As in [`Survey`].
    pub(crate) drifted: Vec<Error>,
    /// So many got no answer, one after another, that the rest was not asked.
    pub(crate) is_cut_off: bool,
}

/// The consumers of `queues`, whose names must be valid, that are not known to be there and right.
///
/// Those that are there are read in a few requests, however many they are; `turned` is called
/// after each.
///
/// # Errors
///
/// [`Error::Different`] if one is not as declared, unless the mode is to change it.
pub(crate) async fn survey(
    js: &Context,
    subjects: &Subjects,
    queues: &[String],
    mode: Mode,
    limits: &StreamLimits,
    turned: &(dyn Fn() + Sync),
) -> Result<Survey, Error> {
    let mut found = HashMap::new();
    for stream in [subjects.work_stream(), subjects.submit_stream()] {
        for info in listed(js, &stream, turned).await {
            found.insert((stream.clone(), info.name), info.config);
        }
    }
    let declared = queues
        .iter()
        .flat_map(|queue| settings::consumers(subjects, queue, limits));
    let mut survey = Survey::default();
    for declared in declared {
        let differences = found
            .get(&declared.key())
            .map(|found| diff::consumers(&declared.config, found));
        match differences {
            Some(none) if none.is_empty() => {}
            Some(differences) if mode != Mode::Apply => {
                survey
                    .drifted
                    .extend(tolerated(&declared, differences, mode)?);
            }
            Some(_) | None => survey.rest.push(declared),
        }
    }
    Ok(survey)
}

/// The difference as something to tell, where the mode lets one go on with it.
fn tolerated(
    declared: &Consumer,
    differences: Vec<Difference>,
    mode: Mode,
) -> Result<Option<Error>, Error> {
    let is_drift = differences.iter().all(|one| one.field == DRIFTS);
    let what = what(declared);
    let error = Error::Different { what, differences };
    if mode == Mode::Keep && is_drift {
        Ok(Some(error))
    } else {
        Err(error)
    }
}

/// Declares consumers, a few at a time. On a cluster each is an election: with many this takes
/// minutes, so `go_on` is asked before each, and where it says no the rest is left out. One that
/// fails keeps no other from being made.
///
/// # Errors
///
/// At once if no JetStream answers, or if one differs that the list had left out.
pub(crate) async fn declare_consumers(
    js: &Context,
    consumers: Vec<Consumer>,
    mode: Mode,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Attempt, Error> {
    let calls: Vec<_> = consumers
        .into_iter()
        .map(|consumer| {
            async move {
                let answer = if go_on() {
                    Some(declare_consumer(js, consumer.clone(), mode).await)
                } else {
                    None
                };
                (consumer, answer)
            }
            .boxed()
        })
        .collect();
    let mut answers = futures_util::stream::iter(calls).buffer_unordered(AT_ONCE);
    let mut attempt = Attempt::default();
    let mut unanswered = 0;
    while let Some((consumer, answer)) = answers.next().await {
        match answer {
            None => {}
            Some(Ok(drift)) => {
                unanswered = 0;
                attempt.drifted.extend(drift);
                attempt.made.insert(consumer.key());
            }
            Some(Err(error @ Error::Refused { .. })) => {
                unanswered = 0;
                attempt.failed.push((consumer, error));
            }
            Some(Err(error @ Error::Unavailable { .. })) => {
                unanswered += 1;
                attempt.failed.push((consumer, error));
                if unanswered >= AT_ONCE {
                    attempt.is_cut_off = true;
                    break;
                }
            }
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(attempt)
}

fn what(consumer: &Consumer) -> String {
    format!("consumer {} on {}", consumer.name, consumer.stream)
}

/// A list is a short cut: what it leaves out, such as a consumer without a leader, or all of them
/// where nobody may read it, is asked for one by one.
pub(crate) async fn listed(
    js: &Context,
    stream: &str,
    turned: &(dyn Fn() + Sync),
) -> Vec<consumer::Info> {
    match api::list_consumers(js, stream, turned).await {
        Ok(found) => found,
        Err(failure) => {
            tracing::debug!(stream, ?failure, "cannot list the consumers");
            Vec::new()
        }
    }
}

/// What differs and stays so, if anything.
pub(super) async fn declare_consumer(
    js: &Context,
    declared: Consumer,
    mode: Mode,
) -> Result<Option<Error>, Error> {
    let Consumer { stream, name, .. } = &declared;
    let what = what(&declared);
    let creating = format!("create {what}");
    let failure = match api::write_consumer(js, &declared, Write::Create).await {
        Ok(_info) => return Ok(None),
        Err(failure) if api::already_exists(&failure) => failure,
        Err(failure) => return Err(Error::from_failure(&creating, failure)),
    };
    let found = api::consumer_info(js, stream, name)
        .await
        .map_err(|failure| Error::from_failure(&format!("look up {what}"), failure))?
        .ok_or_else(|| Error::from_failure(&creating, failure))?;
    let differences = diff::consumers(&declared.config, &found.config);
    if differences.is_empty() {
        return Ok(None);
    }
    match mode {
        Mode::Create | Mode::Keep => tolerated(&declared, differences, mode),
        Mode::Apply => match api::write_consumer(js, &declared, Write::Update).await {
            Ok(_info) => Ok(None),
            Err(failure) => {
                let remedy = format!(
                    "remove it with `nats consumer rm {stream} {name}` (no message is lost) \
                     and run `bellwether migrate` again"
                );
                Err(unchangeable(what, differences, &remedy, failure))
            }
        },
    }
}

//! Consumers: what is right is left alone, what is missing is made.

use std::collections::HashMap;

use async_nats::jetstream::{Context, consumer};
use bellwether_schemas::subject::Subjects;
use futures_util::{FutureExt, StreamExt};

use super::api::{self, Write};
use super::diff;
use super::flow::{Error, Mode, unchangeable};
use super::settings::{self, Consumer, StreamLimits};

/// Consumers declared at the same time.
const AT_ONCE: usize = 8;

/// The consumers of `queues`, whose names must be valid, that are not known to be there and right.
///
/// Those that are there are read in a few requests, however many they are.
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
) -> Result<Vec<Consumer>, Error> {
    let mut found = HashMap::new();
    for stream in [subjects.work_stream(), subjects.submit_stream()] {
        for info in listed(js, &stream).await {
            found.insert((stream.clone(), info.name), info.config);
        }
    }
    let declared = queues
        .iter()
        .flat_map(|queue| settings::consumers(subjects, queue, limits));
    let mut rest = Vec::new();
    for declared in declared {
        let key = (declared.stream.clone(), declared.name.clone());
        let differences = found
            .get(&key)
            .map(|found| diff::consumers(&declared.config, found));
        match differences {
            Some(none) if none.is_empty() => {}
            Some(differences) if mode == Mode::Create => {
                let what = what(&declared);
                return Err(Error::Different { what, differences });
            }
            Some(_) | None => rest.push(declared),
        }
    }
    Ok(rest)
}

/// Declares consumers, a few at a time. On a cluster each is an election: with many this takes
/// minutes, so `go_on` is asked before each, and where it says no the rest is left out.
///
/// # Errors
///
/// The first that the server refused, after all others were tried; at once if there is no answer,
/// or if one differs that the list had left out.
pub(crate) async fn declare_consumers(
    js: &Context,
    consumers: Vec<Consumer>,
    mode: Mode,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<(), Error> {
    let calls: Vec<_> = consumers
        .into_iter()
        .map(|consumer| {
            async move {
                if go_on() {
                    declare_consumer(js, consumer, mode).await
                } else {
                    Ok(())
                }
            }
            .boxed()
        })
        .collect();
    let mut answers = futures_util::stream::iter(calls).buffer_unordered(AT_ONCE);
    let mut first = Ok(());
    while let Some(answer) = answers.next().await {
        match answer {
            Err(error @ Error::Refused { .. }) => first = first.and(Err(error)),
            answer => answer?,
        }
    }
    first
}

fn what(consumer: &Consumer) -> String {
    format!("consumer {} on {}", consumer.name, consumer.stream)
}

/// A list is a short cut: what it leaves out, such as a consumer without a leader, or all of them
/// where nobody may read it, is asked for one by one.
pub(crate) async fn listed(js: &Context, stream: &str) -> Vec<consumer::Info> {
    match api::list_consumers(js, stream).await {
        Ok(found) => found,
        Err(failure) => {
            tracing::debug!(stream, ?failure, "cannot list the consumers");
            Vec::new()
        }
    }
}

pub(super) async fn declare_consumer(
    js: &Context,
    declared: Consumer,
    mode: Mode,
) -> Result<(), Error> {
    let Consumer { stream, name, .. } = &declared;
    let what = what(&declared);
    let creating = format!("create {what}");
    let failure = match api::write_consumer(js, &declared, Write::Create).await {
        Ok(_info) => return Ok(()),
        Err(failure) if api::already_exists(&failure) => failure,
        Err(failure) => return Err(Error::from_failure(&creating, failure)),
    };
    let found = api::consumer_info(js, stream, name)
        .await
        .map_err(|failure| Error::from_failure(&format!("look up {what}"), failure))?
        .ok_or_else(|| Error::from_failure(&creating, failure))?;
    let differences = diff::consumers(&declared.config, &found.config);
    if differences.is_empty() {
        return Ok(());
    }
    match mode {
        Mode::Create => Err(Error::Different { what, differences }),
        Mode::Apply => match api::write_consumer(js, &declared, Write::Update).await {
            Ok(_info) => Ok(()),
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

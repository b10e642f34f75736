//! A message: published by one process, processed by another.

use std::time::Duration;

use bellwether_schemas::trace::TraceContext;
use opentelemetry::trace::{Link, SpanBuilder, SpanKind, TraceContextExt};
use opentelemetry::{Context, KeyValue};

use super::attempt::Process;
use super::{About, Open, now};
use crate::{context, names};

/// A message that was published longer ago is processed in a trace of its own, which links to
/// the first: what waited for hours does not stretch it. For the same reason work that is handed
/// over longer after it was due is published in one.
pub const LINK_AFTER: Duration = Duration::from_mins(15);

/// A fire of more shards is processed in a trace per shard, for the same reason.
pub const LINK_SHARDS: u32 = 64;

/// The span `publish {subject up to its queue}` of one message, from now until it is ended. Its
/// context goes into the header. A root that only links to `trace` if `later`, or if the work was
/// due more than [`LINK_AFTER`] ago by this host's clock: it waited in the ledger, for a snooze
/// or an outage. Without an exporter the context is `trace` in any case.
pub fn publish(
    trace: Option<&TraceContext>,
    later: bool,
    subject: &str,
    message_id: &str,
    about: &About<'_>,
) -> Open {
    let origin = trace.and_then(context::remote);
    let above = origin.clone().map_or_else(Context::new, |origin| {
        Context::new().with_remote_span_context(origin)
    });
    let template = template(subject);
    let mut builder =
        SpanBuilder::from_name(format!("publish {template}")).with_kind(SpanKind::Producer);
    let parent = match origin {
        Some(origin) if later || is_overdue(about) => {
            builder = builder.with_links(vec![Link::with_context(origin)]);
            Context::new()
        }
        _ => above.clone(),
    };
    let open = Open::start(builder, &parent, || {
        let mut all = messaging("publish", "send", template, subject);
        all.push(KeyValue::new(
            names::MESSAGING_MESSAGE_ID,
            message_id.to_owned(),
        ));
        all.extend(about.attributes());
        all
    });
    // Nobody makes spans here: who is above stays the one to go on from.
    if open.trace().is_none() {
        return Open(above);
    }
    open
}

/// Whether the work was due long ago.
fn is_overdue(about: &About<'_>) -> bool {
    let age = about
        .scheduled_at
        .map(|due| now().duration_since(due.into()));
    age.is_some_and(|age| age.is_ok_and(|age| age > LINK_AFTER))
}

/// A message as it reached a worker.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// The context in its headers.
    pub trace: Option<TraceContext>,
    /// Its subject.
    pub subject: String,
    /// `Nats-Msg-Id`, if it has one.
    pub message_id: Option<String>,
    /// How often the broker has delivered it, from 1; 0 = it did not say.
    pub delivery_count: i64,
    /// How long before its receipt the broker had stored it.
    pub age: Duration,
}

impl Heard {
    /// Its subject up to its queue: what spans and metrics are named by.
    pub fn template(&self) -> &str {
        template(&self.subject)
    }

    /// The queue, which every subject of ours names.
    pub fn queue(&self) -> &str {
        let queue = self.template().rsplit('.').next();
        queue.unwrap_or_default()
    }

    /// Whether the broker has delivered it before: its `AckWait` passed without an ack.
    pub fn is_redelivered(&self) -> bool {
        self.delivery_count > 1
    }

    /// The span `process {subject up to its queue}` of a message that was received `ago` and was
    /// claimed.
    ///
    /// A child of the message's context, and linked to it; a root that is only linked if the
    /// message is older than [`LINK_AFTER`] or one of more than [`LINK_SHARDS`] shards.
    pub fn process(&self, ago: Duration, about: &About<'_>, row: Option<&TraceContext>) -> Process {
        // The row's own, if the header was lost: an old message, or one of another version.
        let origin = self.trace.as_ref().or(row);
        let remote = origin.and_then(context::remote);
        let alone = self.age > LINK_AFTER || about.shard_total > Some(LINK_SHARDS);
        let start = now().checked_sub(ago).unwrap_or_else(now);
        let mut builder = SpanBuilder::from_name(format!("process {}", template(&self.subject)))
            .with_kind(SpanKind::Consumer)
            .with_start_time(start);
        if let Some(remote) = &remote {
            builder = builder.with_links(vec![Link::with_context(remote.clone())]);
        }
        let parent = match remote {
            Some(remote) if !alone => Context::new().with_remote_span_context(remote),
            _ => Context::new(),
        };
        let open = Open::start(builder, &parent, || {
            let mut all = messaging("process", "process", template(&self.subject), &self.subject);
            let id = self.message_id.clone();
            all.extend(id.map(|id| KeyValue::new(names::MESSAGING_MESSAGE_ID, id)));
            if self.delivery_count > 0 {
                all.push(KeyValue::new(
                    names::MESSAGING_DELIVERY_COUNT,
                    self.delivery_count,
                ));
            }
            all.extend(about.attributes());
            all
        });
        Process::new(open, origin, about)
    }
}

/// The subject up to its queue: the last token, priority or job, is left out, so that spans are
/// named by queue.
fn template(subject: &str) -> &str {
    subject.rsplit_once('.').map_or(subject, |(start, _)| start)
}

fn messaging(
    name: &'static str,
    kind: &'static str,
    template: &str,
    subject: &str,
) -> Vec<KeyValue> {
    vec![
        KeyValue::new(names::MESSAGING_SYSTEM, names::NATS),
        KeyValue::new(names::MESSAGING_OPERATION_NAME, name),
        KeyValue::new(names::MESSAGING_OPERATION_TYPE, kind),
        KeyValue::new(names::MESSAGING_DESTINATION_NAME, subject.to_owned()),
        KeyValue::new(names::MESSAGING_DESTINATION_TEMPLATE, template.to_owned()),
    ]
}

//! One consumer: how it stands, and making it anew when it has stopped delivering.

use async_nats::jetstream::{Context, consumer};
use bellwether_schemas::subject::Subjects;

use super::api;
use super::consumers::declare_consumer;
use super::flow::{Error, Mode};
use super::settings::{self, StreamLimits};

/// How a consumer stands; none if there is no such consumer.
pub(crate) async fn look_at(
    js: &Context,
    stream: &str,
    name: &str,
) -> Result<Option<consumer::Info>, Error> {
    let looking = format!("look up consumer {name} on {stream}");
    let info = api::consumer_info(js, stream, name).await;
    info.map_err(|failure| Error::from_failure(&looking, failure))
}

/// Removes a consumer of `queue` and declares it anew. Messages stay in the stream; those that
/// were delivered and not acked are delivered once more, which costs a refused claim.
pub(crate) async fn rebuild(
    js: &Context,
    subjects: &Subjects,
    queue: &str,
    stream: &str,
    name: &str,
    limits: &StreamLimits,
) -> Result<(), Error> {
    let removing = format!("remove consumer {name} on {stream}");
    let removed = api::delete_consumer(js, stream, name)
        .await
        .map_err(|failure| Error::from_failure(&removing, failure))?;
    if !removed {
        return Err(Error::Unavailable {
            doing: removing,
            reason: "the server did not do it".to_owned(),
        });
    }
    let declared = settings::consumers(subjects, queue, limits)
        .into_iter()
        .find(|consumer| consumer.stream == stream && consumer.name == name);
    match declared {
        Some(declared) => declare_consumer(js, declared, Mode::Keep).await.map(drop),
        None => Ok(()),
    }
}

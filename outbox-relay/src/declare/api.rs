//! The JetStream API calls that a declaration needs, with one view of their failures.
//!
//! The plain API subjects are used rather than async-nats's helpers: those report each call's
//! failure in a type of its own, and what matters here is only who failed: the server with a
//! definite answer, or the way to it.

use async_nats::jetstream::context::{RequestError, RequestErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, Context, ErrorCode, consumer, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::settings::Consumer;

/// Why a call gave no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server's definite answer.
    Server(jetstream::Error),
    /// No answer.
    Away(RequestError),
}

/// How a consumer is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Write {
    /// Refused by the server if one of other settings exists.
    Create,
    /// Refused by the server if there is none.
    Update,
}

pub(super) async fn stream_info(js: &Context, name: &str) -> Result<Option<stream::Info>, Failure> {
    missing_is_none(call(js, format!("STREAM.INFO.{name}"), &json!({})).await)
}

pub(super) async fn create_stream(
    js: &Context,
    config: &stream::Config,
) -> Result<stream::Info, Failure> {
    call(js, format!("STREAM.CREATE.{}", config.name), config).await
}

pub(super) async fn update_stream(
    js: &Context,
    config: &stream::Config,
) -> Result<stream::Info, Failure> {
    call(js, format!("STREAM.UPDATE.{}", config.name), config).await
}

pub(super) async fn consumer_info(
    js: &Context,
    stream: &str,
    name: &str,
) -> Result<Option<consumer::Info>, Failure> {
    missing_is_none(call(js, format!("CONSUMER.INFO.{stream}.{name}"), &json!({})).await)
}

/// All consumers that the server can say something about now, 256 a request; `turned` is called
/// after each.
pub(super) async fn list_consumers(
    js: &Context,
    stream: &str,
    turned: &(dyn Fn() + Sync),
) -> Result<Vec<consumer::Info>, Failure> {
    #[derive(serde::Deserialize)]
    struct Page {
        total: usize,
        consumers: Option<Vec<consumer::Info>>,
    }
    let mut all = Vec::new();
    loop {
        let request = json!({ "offset": all.len() });
        let page: Page = call(js, format!("CONSUMER.LIST.{stream}"), &request).await?;
        turned();
        let found = page.consumers.unwrap_or_default();
        let is_last = found.is_empty();
        all.extend(found);
        if is_last || all.len() >= page.total {
            return Ok(all);
        }
    }
}

/// The filter stands in the subject, so that an access list can pin it.
pub(super) async fn write_consumer(
    js: &Context,
    consumer: &Consumer,
    write: Write,
) -> Result<consumer::Info, Failure> {
    let Consumer {
        stream,
        name,
        config,
    } = consumer;
    let subject = format!("CONSUMER.CREATE.{stream}.{name}.{}", config.filter_subject);
    let action = match write {
        Write::Create => "create",
        Write::Update => "update",
    };
    let request = json!({ "stream_name": stream, "config": config, "action": action });
    call(js, subject, &request).await
}

/// True = it is gone, whoever removed it.
pub(super) async fn delete_consumer(
    js: &Context,
    stream: &str,
    name: &str,
) -> Result<bool, Failure> {
    #[derive(serde::Deserialize)]
    struct Deleted {
        success: bool,
    }
    let answer = call(js, format!("CONSUMER.DELETE.{stream}.{name}"), &json!({})).await;
    let deleted: Option<Deleted> = missing_is_none(answer)?;
    Ok(deleted.is_none_or(|deleted| deleted.success))
}

async fn call<T, V>(js: &Context, subject: String, request: &T) -> Result<V, Failure>
where
    T: Serialize + Sync,
    V: DeserializeOwned,
{
    match js.request(subject, request).await {
        Ok(Response::Ok(value)) => Ok(value),
        Ok(Response::Err { error }) => Err(Failure::Server(error)),
        Err(error) => Err(Failure::Away(error)),
    }
}

fn missing_is_none<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Server(error)) if is_missing(&error) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn is_missing(error: &jetstream::Error) -> bool {
    matches!(
        error.error_code(),
        ErrorCode::STREAM_NOT_FOUND | ErrorCode::CONSUMER_NOT_FOUND
    )
}

/// Somebody else created it first, with other settings or with ours.
pub(super) fn already_exists(failure: &Failure) -> bool {
    matches!(failure, Failure::Server(error) if matches!(
        error.error_code(),
        ErrorCode::STREAM_NAME_EXIST
            | ErrorCode::CONSUMER_NAME_EXIST
            | ErrorCode::CONSUMER_ALREADY_EXISTS
    ))
}

/// The server says that it cannot say: starting, electing a leader, reloading.
pub(super) fn is_passing(error: &jetstream::Error) -> bool {
    error.code() == 503
}

/// Nobody answers the API: the server runs without JetStream, or has no leader right now.
pub(super) fn no_jetstream(error: &RequestError) -> bool {
    error.kind() == RequestErrorKind::NoResponders
}

//! From an `async fn` to something that a worker can call.

use std::pin::Pin;

use bellwether_schemas::header;
use bellwether_store::Payload;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::outcome::{Failure, HandlerResult, Outcome};

/// A handler at work.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send>>;

/// An argument of a handler: the [`Context`], or a payload of any `DeserializeOwned` type.
///
/// The payload is decoded after the claim: one that does not decode is an attempt that
/// failed with `bad_payload`, charged and bounded like any other.
pub trait Argument: Sized {
    /// Takes the argument from the execution.
    fn take(context: &Context, payload: &Payload) -> Result<Self, Failure>;

    /// Whether [`take`](Self::take) would accept the payload.
    fn check(payload: &Payload) -> Result<(), Failure>;
}

impl Argument for Context {
    fn take(context: &Context, _payload: &Payload) -> Result<Self, Failure> {
        Ok(context.clone())
    }

    fn check(_payload: &Payload) -> Result<(), Failure> {
        Ok(())
    }
}

impl<T: DeserializeOwned> Argument for T {
    fn take(_context: &Context, payload: &Payload) -> Result<Self, Failure> {
        decode(payload)
    }

    fn check(payload: &Payload) -> Result<(), Failure> {
        decode::<T>(payload).map(drop)
    }
}

/// Deepest nesting of a payload: that of `serde_json`, which is the limit for JSON. A deeper one
/// could overflow the stack, which ends the process.
const DEPTH_MAX: usize = 128;

/// An empty JSON body reads as `null`: what `nats pub` sends when nothing was to be said.
pub(crate) fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T, Failure> {
    let bytes = payload.bytes.as_slice();
    match payload.content_type.as_str() {
        header::MSGPACK => {
            let mut bytes = rmp_serde::Deserializer::from_read_ref(bytes);
            bytes.set_max_depth(DEPTH_MAX);
            T::deserialize(&mut bytes).map_err(|error| Failure::BadPayload(error.to_string()))
        }
        header::JSON => {
            let bytes = if bytes.is_empty() { b"null" } else { bytes };
            serde_json::from_slice(bytes).map_err(|error| Failure::BadPayload(error.to_string()))
        }
        other => Err(Failure::BadPayload(format!(
            "content type {other:?} is not understood"
        ))),
    }
}

/// An `async fn` of none, one or two [`Argument`]s whose result is a [`HandlerResult`].
/// `Arguments` only tells the shapes apart; it is never written.
pub trait Handler<Arguments>: Send + Sync + 'static {
    /// Starts an attempt. The payload is decoded inside the future.
    fn call(&self, context: Context, payload: Payload) -> HandlerFuture;

    /// Whether the arguments accept the payload.
    fn check(&self, payload: &Payload) -> Result<(), Failure>;
}

impl<F, Fut> Handler<()> for F
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: HandlerResult> + Send,
{
    fn call(&self, _context: Context, _payload: Payload) -> HandlerFuture {
        let handler = self.clone();
        Box::pin(async move { handler().await.into_result() })
    }

    fn check(&self, _payload: &Payload) -> Result<(), Failure> {
        Ok(())
    }
}

impl<F, Fut, A> Handler<(A,)> for F
where
    F: Fn(A) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: HandlerResult> + Send,
    A: Argument + Send,
{
    fn call(&self, context: Context, payload: Payload) -> HandlerFuture {
        let handler = self.clone();
        Box::pin(async move { handler(A::take(&context, &payload)?).await.into_result() })
    }

    fn check(&self, payload: &Payload) -> Result<(), Failure> {
        A::check(payload)
    }
}

impl<F, Fut, A, B> Handler<(A, B)> for F
where
    F: Fn(A, B) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: HandlerResult> + Send,
    A: Argument + Send,
    B: Argument + Send,
{
    fn call(&self, context: Context, payload: Payload) -> HandlerFuture {
        let handler = self.clone();
        Box::pin(async move {
            let (first, second) = (A::take(&context, &payload)?, B::take(&context, &payload)?);
            handler(first, second).await.into_result()
        })
    }

    fn check(&self, payload: &Payload) -> Result<(), Failure> {
        A::check(payload).and_then(|()| B::check(payload))
    }
}

/// A [`Handler`] whose shape is forgotten.
pub(crate) trait Call: Send + Sync {
    fn call(&self, context: Context, payload: Payload) -> HandlerFuture;

    fn check(&self, payload: &Payload) -> Result<(), Failure>;
}

pub(crate) struct Shaped<H, A> {
    handler: H,
    shape: std::marker::PhantomData<fn() -> A>,
}

impl<H, A> Shaped<H, A> {
    pub(crate) const fn new(handler: H) -> Self {
        Self {
            handler,
            shape: std::marker::PhantomData,
        }
    }
}

impl<H: Handler<A>, A: 'static> Call for Shaped<H, A> {
    fn call(&self, context: Context, payload: Payload) -> HandlerFuture {
        self.handler.call(context, payload)
    }

    fn check(&self, payload: &Payload) -> Result<(), Failure> {
        self.handler.check(payload)
    }
}

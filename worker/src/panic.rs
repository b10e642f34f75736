//! Panics of handlers: what they said, and where.
//!
//! A caught panic carries its message but not its place: only the panic hook sees that. So a
//! hook is put before the one that is there, once in a process, and leaves the place with the
//! thread that panics; whoever catches the panic on that thread finds it. A program that
//! replaces the hook afterwards loses the places and nothing else.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::sync::Once;
use std::task::Poll;

use bellwether_schemas::limits::ERROR_TEXT_MAX;
use bellwether_schemas::text;

thread_local! {
    /// Where this thread panicked last.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught: its message and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

/// The future's end, or its panic. It is never polled again after one.
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    listen();
    let mut work = pin!(work);
    std::future::poll_fn(move |context| {
        // A panic that is resumed calls no hook: it must not be given the place of another.
        PLACE.with_borrow_mut(Option::take);
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => {
                let place = PLACE.with_borrow_mut(Option::take);
                Poll::Ready(Err(Panicked(told(panic, place))))
            }
        }
    })
    .await
}

/// Puts the hook in place.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            let place = panic.location().map(ToString::to_string);
            PLACE.with_borrow_mut(|last| *last = place);
            before(panic);
        }));
    });
}

/// The message of a panic, for people.
pub(crate) fn told(panic: Box<dyn Any + Send>, place: Option<String>) -> String {
    let said = panic
        .downcast_ref::<&str>()
        .map(|said| (*said).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked with a value that is no text".to_owned());
    // The value is the handler's, and may panic in its turn.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
    let place = place
        .map(|place| format!(" (at {place})"))
        .unwrap_or_default();
    // The place is kept, however long the message is.
    let room = ERROR_TEXT_MAX.saturating_sub(place.chars().count());
    format!("{}{place}", text::clean(&said, room))
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "a drop that panics");
        }
    }

    #[tokio::test]
    async fn p22_a_panic_is_told_with_its_place_whatever_it_carries() {
        let texts: [(fn(), &str); 5] = [
            (|| panic!("plain"), "plain"),
            (|| panic!("number {}", 7), "number 7"),
            (|| std::panic::panic_any(7), "no text"),
            (|| drop(Bomb), "a drop that panics"),
            (|| std::panic::panic_any(Bomb), "no text"),
        ];
        for (panics, said) in texts {
            let caught = caught(async move { panics() }).await;
            let Err(Panicked(text)) = caught else {
                panic!("{said}: nothing was caught");
            };
            assert!(text.contains(said), "{text}");
            assert!(text.contains("panic.rs:"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_resumed_panic_does_not_get_the_place_of_another() {
        let resumed = caught(async {
            let inner = catch_unwind(|| panic!("inner"));
            // On another thread the hook leaves its place elsewhere.
            std::panic::resume_unwind(inner.unwrap_err())
        });
        assert!(matches!(resumed.await, Err(Panicked(text)) if text.starts_with("inner")));
        let failed = tokio::task::spawn_blocking(|| panic!("blocking")).await;
        let resumed = caught(async { std::panic::resume_unwind(failed.unwrap_err().into_panic()) });
        assert_eq!(resumed.await, Err::<(), _>(Panicked("blocking".into())));
    }

    #[tokio::test]
    async fn the_place_is_kept_however_long_the_message_is() {
        let panicked = caught(async { panic!("{}", "x".repeat(1 << 20)) }).await;
        let Err::<(), _>(Panicked(text)) = panicked else {
            panic!("nothing was caught");
        };
        assert_eq!(text.chars().count(), ERROR_TEXT_MAX);
        assert!(text.ends_with(')'), "{text}");
    }
}

//! The `#[job]` attribute of `bellwether-worker`; see its documentation there.

mod arguments;
mod expand;
mod value;

use proc_macro::TokenStream;

/// Declares a job on an ordinary `async fn`, which stays callable as it is.
///
/// Beside the function stands an empty type of the same name (functions and types have
/// namespaces of their own) with one function, `job()`, to be registered:
///
/// ```ignore
/// #[job(name = "nightly-report", cron = "0 0 2 * * *", tz = "Asia/Shanghai", shards = 4)]
/// async fn nightly_report(ctx: Context) -> Result<u64, std::io::Error> { Ok(7) }
///
/// Worker::builder().register(nightly_report::job())
/// ```
///
/// The arguments are none, `Context`, a payload of any `DeserializeOwned` type, or both. The
/// result is a `Result` of an `Outcome` or of anything `Serialize`, which becomes the output.
///
/// | attribute | meaning | default |
/// |---|---|---|
/// | `name = "…"` | the job's wire identity, `[A-Za-z0-9_-]{1,64}` | required |
/// | `description = "…"` | what it is for, shown with its schedule; at most 1,024 characters | the first paragraph of the function's doc comment |
/// | `cron = "…"` | fires by this expression, checked at compile time | API only |
/// | `tz = "…"` | IANA zone of `cron` | `UTC` |
/// | `every = "20s"` | fires by this interval (`s`, `m`, `h`, `d`) instead | API only |
/// | `shards = 4` | shards of each fire, 1 to 1,000 | 1 |
/// | `payload = r#"…"#` | JSON that each fire hands to the handler | `null` |
/// | `grace = "1m"` | how late an instant may be and not count as missed | 1 min |
/// | `misfire = "…"` | what fires of missed instants: `fire_once`, `skip` or `catch_up` | `fire_once` |
/// | `catch_up_max = 10` | with `catch_up`: the newest 1 to 1,000 of them | – |
/// | `catch_up_window = "1h"` | with `catch_up`: none that lies longer ago | – |
/// | `overlap = "…"` | while a fire is unfinished: `allow`, `skip`, `queue_one` or `replace` | `allow` |
/// | `queue = "…"` | the queue of its fires, served by this worker | `default` |
/// | `priority = "…"` | `high`, `normal` or `low` | `normal` |
/// | `timeout = "10m"` | time an attempt may run † | 5 min |
/// | `max_attempts = 3` | most charged attempts, 1 to 1,000,000 † | 5 |
/// | `start_deadline = "1h"` | not started this long after due: expired † | 24 h |
/// | `on_lost = "…"` | `retry`, or `unknown` if the effect must not be repeated blindly † | `retry` |
/// | `probe = function` | says what became of an `unknown` attempt: an `async fn(ProbeContext)` that returns a `Probed`, or a `Result` of one | an operator says it |
/// | `retry_first = "2s"` | bound of the delay after the first attempt (`ms`, `s`, `m`, `h`, `d`); doubles with each † | 1 s |
/// | `retry_cap = "1m"` | what that bound never exceeds † | 10 min |
///
/// † of scheduled and submitted fires; an enqueue brings its own policy.
#[proc_macro_attribute]
pub fn job(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = syn::parse_macro_input!(item as syn::ItemFn);
    match arguments::Arguments::parse(attribute.into())
        .and_then(|arguments| expand::expand(&arguments, &function))
    {
        Ok(expanded) => expanded.into(),
        Err(error) => {
            // The function stays, so that one mistake here is one error, not one per call.
            let error = error.to_compile_error();
            quote::quote!(#function #error).into()
        }
    }
}

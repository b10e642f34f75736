//! Wait for the end of a fire, an execution or a submission.
//!
//! Polling with a growing pause: the ledger is the only one who knows, and a reader costs
//! no hot statement anything.

use std::time::Duration;

use bellwether_schemas::header;
use bellwether_schemas::state::State;
use bellwether_store::inspect::ShardResult;
use bellwether_store::{Payload, Store};
use tokio::time::Instant;
use uuid::Uuid;

use crate::submit::Submitted;
use crate::{Client, Error, Result};

const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_millis(500);
/// A look has this long even when no time is left: `wait` with none is one look.
const LOOK_MIN: Duration = Duration::from_millis(500);

/// What to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// All shards of a fire.
    Fire(Uuid),
    /// One execution.
    Execution(Uuid),
    /// A submission; its execution appears with its claim.
    Key {
        /// The job.
        job: String,
        /// The key.
        key: String,
    },
}

impl From<&Submitted> for What {
    fn from(submitted: &Submitted) -> Self {
        Self::Key {
            job: submitted.job.clone(),
            key: submitted.key.clone(),
        }
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fire(id) => write!(f, "fire {id}"),
            Self::Execution(id) => write!(f, "execution {id}"),
            Self::Key { job, key } => write!(f, "submission {job}/{key}"),
        }
    }
}

/// How what was waited for ended.
#[derive(Debug, Clone)]
pub struct Waited {
    /// Every shard, by index; one for an execution.
    pub shards: Vec<ShardResult>,
}

impl Waited {
    /// Whether every shard succeeded.
    pub fn succeeded(&self) -> bool {
        self.shards
            .iter()
            .all(|shard| shard.state == State::Succeeded)
    }

    /// The outputs of the shards that succeeded, decoded by their content type (JSON or
    /// MessagePack), by shard index.
    pub fn outputs<T: serde::de::DeserializeOwned>(&self) -> Result<Vec<T>> {
        let outputs = self
            .shards
            .iter()
            .filter_map(|shard| Some((shard.shard_index, shard.output.as_ref()?)));
        outputs
            .map(|(shard_index, output)| {
                decode(output).map_err(|reason| Error::Decode {
                    shard_index,
                    reason,
                })
            })
            .collect()
    }
}

fn decode<T: serde::de::DeserializeOwned>(output: &Payload) -> Result<T, String> {
    if output.content_type == header::MSGPACK {
        rmp_serde::from_slice(&output.bytes).map_err(|error| error.to_string())
    } else {
        serde_json::from_slice(&output.bytes).map_err(|error| error.to_string())
    }
}

impl Client {
    /// Waits until everything named has ended, at most `timeout`. A fire or an execution that
    /// does not exist is an error at once; a submission may still lie in the stream.
    ///
    /// A database that is away is waited for as well: the error is a time-out.
    pub async fn wait(&self, what: impl Into<What>, timeout: Duration) -> Result<Waited> {
        let what = what.into();
        let store = self.store("wait")?;
        // None = later than any clock goes.
        let deadline = Instant::now().checked_add(timeout);
        let left = || {
            deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            })
        };
        let mut pause = POLL_MIN;
        loop {
            let look = look(store.as_ref(), &what);
            match tokio::time::timeout(left().max(LOOK_MIN), look).await {
                Ok(Ok(Some(waited))) => return Ok(waited),
                Ok(Ok(None)) | Err(_) => {}
                Ok(Err(Error::Store(error))) if error.is_transient() => {
                    tracing::debug!(%error, "waiting goes on");
                }
                Ok(Err(error)) => return Err(error),
            }
            let left = left();
            if left.is_zero() {
                return Err(Error::WaitTimedOut {
                    what: what.to_string(),
                });
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 3 / 2).min(POLL_MAX);
        }
    }
}

/// The end, if it has come.
async fn look(store: &dyn Store, what: &What) -> Result<Option<Waited>> {
    let missing = || Error::NothingToWaitFor {
        what: what.to_string(),
    };
    let shards = match what {
        What::Fire(id) => {
            let shards = store.fire_results(*id).await?;
            if shards.is_empty() {
                return Err(missing());
            }
            shards
        }
        What::Execution(id) => vec![store.execution_result(*id).await?.ok_or_else(missing)?],
        What::Key { job, key } => {
            let Some(id) = store.execution_of_key(job, key).await? else {
                return Ok(None);
            };
            vec![store.execution_result(id).await?.ok_or_else(missing)?]
        }
    };
    let ended = shards.iter().all(|shard| shard.state.is_terminal());
    Ok(ended.then_some(Waited { shards }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(content_type: &str, bytes: &[u8]) -> Waited {
        let output = Payload {
            bytes: bytes.to_vec(),
            content_type: content_type.to_owned(),
        };
        Waited {
            shards: vec![ShardResult {
                execution_id: Uuid::nil(),
                job: "report".to_owned(),
                shard_index: 0,
                shard_total: 1,
                state: State::Succeeded,
                reason: None,
                output: Some(output),
                error: None,
            }],
        }
    }

    #[test]
    fn outputs_are_decoded_by_their_content_type() {
        let packed = waited(header::MSGPACK, &[0xcd, 0x01, 0x00]);
        assert_eq!(packed.outputs::<u32>().unwrap(), [256]);
        let json = waited(header::JSON, b"256");
        assert_eq!(json.outputs::<u32>().unwrap(), [256]);
        let said = json.outputs::<bool>().unwrap_err().to_string();
        assert!(said.contains("decode the output of shard 0"), "{said}");
    }
}

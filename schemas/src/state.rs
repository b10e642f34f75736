//! States, reasons, triggers and lanes: the words of the ledger.

use serde::{Deserialize, Serialize};

/// A text that is not one of the words of an enum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}")]
pub struct UnknownWord {
    /// The enum's name in the documentation.
    pub kind: &'static str,
    /// The text found.
    pub text: String,
}

macro_rules! words {
    ($(#[$meta:meta])* $kind:literal $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The word as it stands in SQL, JSON, metrics and on screens.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(UnknownWord { kind: $kind, text: text.to_owned() }),
                }
            }
        }
    };
}

words! {
    /// Where an execution stands. Terminal states are never left again. All transitions, and
    /// who makes them: `docs/life.md`.
    "state" State {
        /// Waits for its first claim. Moved on by a claim, a cancel, a start deadline, or a relay
        /// whose dispatch can never be claimed. After a crash of anything the row still says so:
        /// a sweep dispatches it when it is due, a relay again what the broker has lost.
        Pending = "pending",
        /// One worker holds the claim. Moved on by that worker's commit, else by the
        /// sweep when its session is lost or its deadline has passed. A crash of the worker
        /// leaves the claim, and the sweep finds that.
        Running = "running",
        /// Waits for another attempt from `available_at` on. Moved on like `pending`.
        Retrying = "retrying",
        /// The worker was lost, or its handler did not stop, and the effect must not be
        /// repeated blindly. Moved on by a late commit of the same claim, by a probe or by an
        /// operator; never by a sweep. A crash of a probe's worker leaves the row to be probed
        /// again.
        Unknown = "unknown",
        /// Terminal: the handler completed and its result was accepted.
        Succeeded = "succeeded",
        /// Terminal: rejected by the handler, or the attempts are used up; see the reason.
        Failed = "failed",
        /// Terminal: stopped on request.
        Cancelled = "cancelled",
        /// Terminal: nobody started it before its start deadline.
        Expired = "expired",
    }
}

impl State {
    /// Whether nothing will ever move the execution on.
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::Expired
        )
    }

    /// Whether a claim may take it.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Pending | Self::Retrying)
    }
}

words! {
    /// Why an execution left `running`, or why it ended.
    "reason" Reason {
        /// The handler said `Fail`.
        Rejected = "rejected",
        /// The handler returned an error.
        Error = "error",
        /// The execution deadline passed.
        Timeout = "timeout",
        /// The handler panicked.
        Panic = "panic",
        /// The payload does not decode into the job's type.
        BadPayload = "bad_payload",
        /// The worker's session was lost while it ran.
        WorkerLost = "worker_lost",
        /// The handler asked to be called again later; the charge was given back.
        Snooze = "snooze",
        /// The worker gave it back unstarted or at its stop; the charge was given back.
        Release = "release",
        /// The broker refused the dispatch for its own sake.
        Undeliverable = "undeliverable",
        /// No worker serves the job.
        NoHandler = "no_handler",
        /// The handler said `Cancel`, or an operator did.
        Cancelled = "cancelled",
        /// The handler committed in a transaction of its own, and that did not commit.
        TxNotCommitted = "tx_not_committed",
    }
}

words! {
    /// What made a fire.
    "trigger" Trigger {
        /// An instant of a cron schedule.
        Cron = "cron",
        /// An instant of an interval schedule.
        Every = "every",
        /// The instant of an `at` schedule.
        At = "at",
        /// A manual trigger of a schedule.
        Manual = "manual",
        /// A one-shot through the outbox.
        Once = "once",
        /// A one-shot published to the submit subject.
        Submit = "submit",
        /// An operator's retry of an execution that has ended, or a replay of a dead letter.
        Retry = "retry",
    }
}

words! {
    /// Why instants of a schedule did not fire.
    "non-fire reason" NonFireReason {
        /// Later than the grace, and the misfire policy did not fire them.
        Misfired = "misfired",
        /// The schedule was paused.
        Paused = "paused",
        /// An edit of the timing took effect before they were planned.
        Edited = "edited",
        /// The fire before was unfinished and the overlap policy is `skip`.
        Skipped = "skipped",
        /// A fire was held already, and the overlap policy holds one at most.
        Coalesced = "coalesced",
    }
}

words! {
    /// What a schedule does with an instant while a fire of it is unfinished (`unknown` counts as
    /// unfinished). A manual trigger is not asked.
    "overlap policy" Overlap {
        /// It fires. The default.
        Allow = "allow",
        /// It does not; recorded as `skipped`.
        Skip = "skip",
        /// It fires once the schedule has nothing unfinished. One such fire is held at most;
        /// later instants are `coalesced`.
        QueueOne = "queue_one",
        /// As `queue_one`, and what is unfinished is asked to stop.
        Replace = "replace",
    }
}

words! {
    /// What became of an `unknown` execution's effect, as a probe or an operator says.
    "verdict" Verdict {
        /// The effect happened: `succeeded`.
        Done = "done",
        /// It did not, and will not any more: another attempt.
        NotDone = "not_done",
        /// It is under way, or cannot be seen now: a probe asks again.
        InProgress = "in_progress",
        /// A probe cannot say: an operator decides.
        CannotTell = "cannot_tell",
        /// An operator gives it up: `failed`.
        Abandon = "abandon",
    }
}

words! {
    /// Why a message or a dispatch can never run.
    "dead letter reason" DeadReason {
        /// A `Bw-*` header does not read.
        BadHeader = "bad_header",
        /// Its content type is neither JSON nor MessagePack.
        UnsupportedContentType = "unsupported_content_type",
        /// Larger than a payload may be.
        TooLarge = "too_large",
        /// Its idempotency key is refused.
        BadKey = "bad_key",
        /// Older than idempotency keys are kept.
        Stale = "stale",
        /// Nobody serves its queue.
        UnknownQueue = "unknown_queue",
        /// A dispatch that the broker refuses for its own sake.
        Undeliverable = "undeliverable",
        /// Dispatched five times (option) and never claimed by a fleet that had free slots.
        Unclaimed = "unclaimed",
    }
}

words! {
    /// What a person did about a dead letter.
    "resolution" Resolution {
        /// It was run as an execution of its own.
        Replayed = "replayed",
        /// It was dropped.
        Discarded = "discarded",
    }
}

words! {
    /// What a worker understands beyond the first version of its contract. A peer that does
    /// not announce one is not asked for it.
    "capability" Capability {
        /// Looks for requests to cancel what it runs.
        Cancel = "cancel",
    }
}

words! {
    /// The lane of a dispatch inside its queue.
    "priority" Priority {
        /// Served first.
        High = "high",
        /// The default.
        Normal = "normal",
        /// Served last.
        Low = "low",
    }
}

words! {
    /// What happens to a running execution whose worker was lost, or whose handler did not stop.
    "on_lost policy" OnLost {
        /// Another attempt, charged. The default: the effect may be repeated.
        Retry = "retry",
        /// `unknown` until a late commit, a probe or an operator says what became of it.
        Unknown = "unknown",
    }
}

words! {
    /// One worker process's life in the ledger; one way from left to right.
    "session state" SessionState {
        /// Renews its lease.
        Live = "live",
        /// Its lease ran out; what it ran is taken over. Never live again.
        Lost = "lost",
        /// Ended by itself with nothing running.
        Closed = "closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for state in State::ALL {
            assert_eq!(state.as_str().parse::<State>().as_ref(), Ok(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert!(!(state.is_terminal() && state.is_waiting()));
        }
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        assert_eq!(
            "lots".parse::<State>().unwrap_err().to_string(),
            "\"lots\" is no state"
        );
    }
}

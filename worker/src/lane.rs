//! One durable consumer as a worker sees it: how it is asked, and what its answers mean.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subscriber};
use bellwether_schemas::state::Priority;
use bellwether_schemas::subject::{self, Subjects};
use bellwether_telemetry::Trouble;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::ack_wait::AckWait;
use crate::capacity::Reserved;
use crate::clock;
use crate::delivery::{LastOurs, NOTHING_YET, Source};
use crate::retry::between;

/// A pull that waits, waits this long …
const EXPIRES: Duration = Duration::from_secs(20);
/// … and hears from the server this often meanwhile.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A server silent for so long over the time agreed is not there.
const SILENCE: Duration = Duration::from_secs(2);

/// A consumer that is not there after so long is worth a log line: a relay makes that of a new
/// queue within a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a lane is known to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Perhaps something: it has to be looked at.
    Look,
    /// Nothing, at this boot time; no pull waits on it for want of room.
    Empty(Duration),
    /// Nothing; a pull waits on it.
    Parked,
    /// Not to be asked before this boot time.
    Paused(Duration),
}

/// A queue's lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) queue: Arc<str>,
    pub(crate) source: Source,
    pub(crate) rank: Rank,
    pub(crate) state: State,
    /// Boot time of the start.
    pub(crate) since: Duration,
    pub(crate) last_ours: LastOurs,
    pub(crate) trouble: Trouble,
    pub(crate) ack_wait: AckWait,
    /// Where it is asked.
    next: String,
    /// For people.
    name: String,
}

/// Which lanes are looked at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    High,
    /// `normal` of the work stream, and the submit stream.
    Normal,
    Low,
}

impl Lane {
    /// The four lanes of a queue.
    pub(crate) fn of_queue(subjects: &Subjects, queue: &str) -> Vec<Self> {
        let work = |priority, rank| {
            let consumer = subject::work_consumer(queue, priority);
            Self::new(
                queue,
                Source::Work,
                rank,
                &subjects.work_stream(),
                &consumer,
            )
        };
        vec![
            work(Priority::High, Rank::High),
            work(Priority::Normal, Rank::Normal),
            Self::new(
                queue,
                Source::Submit,
                Rank::Normal,
                &subjects.submit_stream(),
                &subject::submit_consumer(queue),
            ),
            work(Priority::Low, Rank::Low),
        ]
    }

    fn new(queue: &str, source: Source, rank: Rank, stream: &str, consumer: &str) -> Self {
        Self {
            queue: Arc::from(queue),
            source,
            rank,
            state: State::Look,
            since: clock::boot(),
            last_ours: LastOurs::new(NOTHING_YET.into()),
            trouble: Trouble::with("pull messages").after(PATIENCE),
            ack_wait: AckWait::of(stream, consumer),
            next: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            name: format!("{stream}/{consumer}"),
        }
    }

    pub(crate) fn next(&self) -> &str {
        &self.next
    }

    pub(crate) fn paused(&mut self, pause: &Pause, now: Duration) {
        self.state = State::Paused(now + between(pause.low, pause.high));
        self.ack_wait.doubt();
        self.trouble
            .note(&format_args!("consumer {}: {}", self.name, pause.why));
    }
}

/// What a message on a pull's inbox says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Work.
    Delivery,
    /// The server is there.
    Alive,
    /// The pull is over; nothing more is there.
    Empty,
    /// The pull is over; ask later.
    Pause(Pause),
}

/// Why, and about how long, not to ask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    low: Duration,
    high: Duration,
    why: String,
}

impl Pause {
    fn new(low_ms: u64, high_ms: u64, why: &str) -> Self {
        Self {
            low: Duration::from_millis(low_ms),
            high: Duration::from_millis(high_ms),
            why: why.to_owned(),
        }
    }
}

pub(crate) fn hear(message: &Message) -> Heard {
    let said = message.description.as_deref().unwrap_or_default();
    match message.status {
        None | Some(StatusCode::OK) if message.reply.is_some() => Heard::Delivery,
        Some(StatusCode::IDLE_HEARTBEAT) => Heard::Alive,
        Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Heard::Empty,
        Some(StatusCode::NO_RESPONDERS) => Heard::Pause(Pause::new(
            250,
            2_000,
            "not there; waiting for a relay to make it",
        )),
        Some(StatusCode::REQUEST_TERMINATED) => terminated(said),
        Some(status) => Heard::Pause(Pause::new(1_000, 5_000, &format!("{status} {said}"))),
        None => Heard::Pause(Pause::new(1_000, 5_000, "a message without an ack subject")),
    }
}

fn terminated(said: &str) -> Heard {
    let says = |text: &str| said.to_ascii_lowercase().contains(text);
    if says("batch completed") {
        Heard::Empty
    } else if says("leadership change") || says("shutdown") {
        Heard::Pause(Pause::new(50, 250, said))
    } else if says("consumer deleted") {
        Heard::Pause(Pause::new(250, 2_000, said))
    } else {
        // Among them "Exceeded MaxWaiting": the fleet has too many pulls waiting.
        Heard::Pause(Pause::new(1_000, 5_000, said))
    }
}

/// What a pull asks for at once: what is there now, at most `batch`.
pub(crate) fn pull_now(batch: usize) -> Bytes {
    Bytes::from(format!(r#"{{"batch":{batch},"no_wait":true}}"#))
}

fn pull_waiting(expires: Duration) -> Bytes {
    let expires_ns = expires.as_nanos();
    if expires < EXPIRES {
        return Bytes::from(format!(r#"{{"batch":1,"expires":{expires_ns}}}"#));
    }
    let heartbeat_ns = HEARTBEAT.as_nanos();
    Bytes::from(format!(
        r#"{{"batch":1,"expires":{expires_ns},"idle_heartbeat":{heartbeat_ns}}}"#
    ))
}

/// How a waiting pull ended.
#[derive(Debug)]
pub(crate) struct Unparked {
    /// Index of the lane.
    pub(crate) lane: usize,
    pub(crate) reserved: Reserved,
    pub(crate) end: End,
}

#[derive(Debug)]
pub(crate) enum End {
    Delivery(Box<Message>),
    Empty,
    Pause(Pause),
    /// The server did not say what it had to say by now.
    Silent,
}

/// A pull for one message that waits, on an inbox of its own.
#[derive(Debug)]
pub(crate) struct Park {
    pub(crate) lane: usize,
    pub(crate) reserved: Reserved,
    client: Client,
    inbox: String,
    subscriber: Subscriber,
    next: String,
    /// How long without a word is too long.
    patience: Duration,
}

impl Park {
    /// Sends the pull. `short` = it shall make way for other lanes soon.
    pub(crate) async fn send(
        client: &Client,
        lane: usize,
        next: &str,
        reserved: Reserved,
        short: Option<Duration>,
    ) -> Result<Self, String> {
        let inbox = client.new_inbox();
        let subscriber = client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| error.to_string())?;
        let expires = short.unwrap_or(EXPIRES);
        client
            .publish_with_reply(next.to_owned(), inbox.clone(), pull_waiting(expires))
            .await
            .map_err(|error| error.to_string())?;
        let patience = short.map_or(HEARTBEAT * 2, |short| short + SILENCE);
        Ok(Self {
            lane,
            reserved,
            client: client.clone(),
            inbox,
            subscriber,
            next: next.to_owned(),
            patience,
        })
    }

    /// Waits for its end, or takes it back when `recall` says so.
    ///
    /// Taking back must not lose a message that is under way: the subscription is told to end
    /// with its next message, and a second pull, that does not wait, sees to it that there is
    /// one. Whatever comes first, delivery or "nothing there", is the last.
    pub(crate) async fn wait(mut self, recall: CancellationToken) -> Unparked {
        let mut heard = 0;
        let mut recalled = false;
        let end = loop {
            let message = tokio::select! {
                message = tokio::time::timeout(self.patience, self.subscriber.next()) => message,
                () = recall.cancelled(), if !recalled => {
                    recalled = true;
                    if self.take_back(heard + 1).await.is_err() {
                        break End::Silent;
                    }
                    continue;
                }
            };
            let message = match message {
                Ok(Some(message)) => message,
                // Its last message was a heartbeat.
                Ok(None) if recalled => break End::Empty,
                Ok(None) | Err(_) => break End::Silent,
            };
            heard += 1;
            match hear(&message) {
                Heard::Delivery => break End::Delivery(Box::new(message)),
                Heard::Alive => {}
                Heard::Empty => break End::Empty,
                Heard::Pause(pause) => break End::Pause(pause),
            }
        };
        Unparked {
            lane: self.lane,
            reserved: self.reserved,
            end,
        }
    }

    async fn take_back(&mut self, last: u64) -> Result<(), String> {
        self.patience = SILENCE;
        self.subscriber
            .unsubscribe_after(last)
            .await
            .map_err(|error| error.to_string())?;
        self.client
            .publish_with_reply(self.next.clone(), self.inbox.clone(), pull_now(1))
            .await
            .map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, said: &str) -> Heard {
        hear(&Message {
            subject: "inbox".into(),
            reply: None,
            payload: Bytes::new(),
            headers: None,
            status: StatusCode::from_u16(code).ok(),
            description: Some(said.to_owned()),
            length: 0,
        })
    }

    fn pause_ms(heard: Heard) -> Option<(u128, u128)> {
        match heard {
            Heard::Pause(pause) => Some((pause.low.as_millis(), pause.high.as_millis())),
            _ => None,
        }
    }

    #[test]
    fn every_status_has_its_own_patience() {
        assert_eq!(status(100, "Idle Heartbeat"), Heard::Alive);
        assert_eq!(status(404, "No Messages"), Heard::Empty);
        assert_eq!(status(408, "Request Timeout"), Heard::Empty);
        assert_eq!(pause_ms(status(409, "Leadership Change")), Some((50, 250)));
        assert_eq!(pause_ms(status(409, "Server Shutdown")), Some((50, 250)));
        assert_eq!(
            pause_ms(status(409, "Consumer Deleted")),
            Some((250, 2_000))
        );
        assert_eq!(
            pause_ms(status(409, "Exceeded MaxWaiting")),
            Some((1_000, 5_000))
        );
        assert_eq!(pause_ms(status(503, "")), Some((250, 2_000)));
        assert_eq!(pause_ms(status(400, "Bad Request")), Some((1_000, 5_000)));
    }

    #[test]
    fn a_queue_has_four_lanes() {
        let subjects = Subjects::new("bw").expect("a good name");
        let lanes = Lane::of_queue(&subjects, "mail");
        let names: Vec<_> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "BW_WORK/mail-high",
                "BW_WORK/mail-normal",
                "BW_SUBMIT/mail",
                "BW_WORK/mail-low"
            ]
        );
        assert_eq!(lanes[2].next(), "$JS.API.CONSUMER.MSG.NEXT.BW_SUBMIT.mail");
    }
}

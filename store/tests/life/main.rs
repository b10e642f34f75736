//! The life of an execution: the machine keeps its laws, and both stores do what it says.
//!
//! `BELLWETHER_TEST_LIFE_CASES` = more (or fewer) histories, `BELLWETHER_TEST_LIFE_SEED` = those of a
//! run that failed.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "../conformance/fixture.rs"]
#[expect(dead_code, reason = "the conformance suite uses the rest")]
mod fixture;
#[path = "../conformance/raw.rs"]
#[expect(dead_code, reason = "the conformance suite uses the rest")]
mod raw;
#[path = "../conformance/vocabulary.rs"]
#[expect(dead_code, reason = "the conformance suite uses the rest")]
mod vocabulary;

mod document;
mod events;
mod laws;
mod machine;
mod pairs;
mod stations;
mod stores;
mod subject;
mod walk;
mod world;

/// Registers every case as `sqlite::<case>` and as `postgres::<case>`.
macro_rules! on_both {
    ($($area:ident: $($case:ident),+;)+) => {
        mod sqlite {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::fixture::on_sqlite(crate::$area::$case).await;
            })+)+
        }

        mod postgres {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::fixture::on_postgres(crate::$area::$case).await;
            })+)+
        }
    };
}

on_both! {
    stores:
        every_history_is_lived_as_the_machine_says;
    pairs:
        r88_late_writes_are_refused_by_every_transition;
    stations:
        r89_a_crash_at_any_of_six_stations_loses_and_doubles_nothing;
}

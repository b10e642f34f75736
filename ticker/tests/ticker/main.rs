//! The ticker on real databases; each body runs on SQLite and on Postgres.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what went wrong by panicking"
)]

mod downtime;
mod history;
mod meter;
mod partitions;
mod planning;
mod support;
mod sweeps;
mod terms;

macro_rules! on_both {
    ($file:ident: $($body:ident)+) => { $(
        mod $body {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                crate::$file::$body(&crate::support::Sandbox::sqlite().await).await;
            }

            crate::postgres_test! { $file $body }
        }
    )+ };
}

/// For what SQLite cannot do, with the reason beside it.
macro_rules! on_postgres {
    ($file:ident: $($body:ident)+) => { $(
        mod $body {
            crate::postgres_test! { $file $body }
        }
    )+ };
}

macro_rules! postgres_test {
    ($file:ident $body:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn postgres() {
            if let Some(sandbox) = crate::support::Sandbox::postgres().await {
                crate::$file::$body(&sandbox).await;
            }
        }
    };
}
use postgres_test;

on_both! { terms:
    p01_a_stolen_lease_ends_planning_until_the_thief_is_gone
    p02_three_tickers_with_one_name_have_one_leader
    p60_a_missing_lease_row_stops_all_and_shows
    p63_leaders_killed_one_after_another_miss_and_double_no_instant
    r31_configured_partition_count_must_match
    a_stopped_ticker_resigns_so_that_the_next_one_leads_at_once
    a_leader_that_slept_steps_down_by_its_boot_clock
    a_term_that_is_believed_in_no_more_is_given_back
    a_lease_in_its_name_that_a_ticker_does_not_know_of_is_given_back
    a_clock_step_holds_all_cursors_for_one_term
    a_killed_leader_is_replaced_within_12_5_s_at_the_default_leases
}

// SQLite has one lock for all; a process that holds it stops renewals too.
on_postgres! { terms:
    p04_leadership_does_not_flap_while_all_other_connections_wait
    p68_a_planner_that_hangs_gives_up_the_term
}

on_both! { partitions:
    partitions_are_shared_and_failover_is_of_the_dead_ones_alone
    r27_live_tickers_follow_a_new_map_without_a_restart
    a_lost_term_stops_its_partition_alone
    p60_a_missing_lease_row_stops_its_partition_and_no_sharing
}

// SQLite has no row locks, and no network to it that could be away.
on_postgres! { partitions:
    a_lease_that_cannot_be_had_stops_no_other
    p10_an_outage_ends_no_ticker_that_leads_many_partitions
}

on_both! { planning:
    p05_a_fire_appears_late_once_with_its_nominal_time
    p38_planning_goes_on_after_an_error
    p38_a_panic_inside_the_tick_ends_the_ticker_and_its_readiness
    p57_three_hours_down_is_one_fire_and_one_range
    r70_shards_are_planned_together_and_the_waker_is_told
    a_large_second_is_planned_in_several_statements
}

// SQLite writes one plan after the other, and has no row locks.
on_postgres! { planning:
    schedules_that_somebody_holds_stop_no_other
    a_planner_that_sees_only_what_others_hold_gives_up_the_term
    as_many_plans_are_in_flight_as_the_options_say
}

on_both! { downtime:
    p57_after_three_hours_each_policy_settles_exactly_and_goes_on_in_time
    after_three_hours_overlap_policies_settle_exactly_and_hold_one_fire_at_most
    p48_a_new_leader_after_six_days_fires_what_the_policy_allows_and_no_more
    p64_a_takeover_fires_nothing_while_the_fire_before_is_unfinished
    a_missed_instant_is_judged_by_the_timing_that_was_valid_then
}

on_both! { history:
    p50_old_history_is_deleted_by_tickers_that_share_the_work
    what_cannot_be_deleted_keeps_no_other_kind
}

on_both! { sweeps:
    p62_a_lost_worker_raises_attempts_and_no_fires
    r43_without_a_worker_an_execution_ends_at_its_start_deadline
    a_replacing_schedule_goes_on_by_itself
    r69_what_is_due_later_is_dispatched_by_a_standby_too
    a_fresh_ticker_declares_no_session_lost_for_one_lease
    r68_a_schedule_ends_when_the_whole_fleet_has_stopped_to_define_it
}

// SQLite cannot make a statement slow.
on_postgres! { sweeps:
    slow_statements_are_no_break_of_the_view
}

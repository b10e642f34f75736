//! The conformance suite of the ledger: one body per behaviour, run on both stores.
//!
//! A case is an `async fn case(ledger: &Fixture)` in the module of its area. It gets a fresh,
//! migrated ledger, and is told in the words of [`vocabulary`]. To add one: write it, and name it
//! in the list below; a case that is in no list does not compile without a warning. What lies in
//! the past is shifted there by plain SQL; no case sleeps.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod answers;
mod audit;
mod bounds;
mod by_role;
mod cancels;
mod changes;
mod checkpoints;
mod claim;
mod clocks;
mod commit;
mod cursor;
mod dead;
mod declined;
mod definitions;
mod edits;
mod enqueue;
mod fence;
mod fixture;
mod grants;
mod grow;
mod held;
mod history;
mod idempotency;
mod inspect;
mod install;
mod laws;
mod laws_of_attempts;
mod leadership;
mod lost;
mod migrate;
mod outbox;
mod overlap;
mod planning;
mod plans;
mod probes;
mod purge;
mod raw;
mod repeats;
mod retention;
mod retry;
mod rights;
mod roster;
mod rulings;
mod schedules;
mod sessions;
mod submitted;
mod sweepers;
mod sweeps;
mod takeover;
mod transaction;
mod users;
mod vocabulary;

/// Registers every case as `sqlite::<case>` and as `postgres::<case>`.
macro_rules! conformance {
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

        /// The cases, by name.
        const CASES: &[&str] = &[$($(stringify!($case)),+),+];
    };
}

conformance! {
    leadership:
        p03_one_winner_by_returned_row,
        p02_identity_is_per_process_start,
        a_renewal_extends_and_an_expired_term_stays_lost,
        a_takeover_raises_the_epoch_and_ends_the_old_term,
        p01_stolen_lease_is_not_renewed,
        p60_missing_lease_row_is_an_error,
        a_resigned_lease_is_free_at_once,
        r31_other_partition_map_is_refused,
        older_zone_data_may_not_lead,
        a_takeover_waits_for_planners_and_a_renewal_does_not;
    roster:
        each_ticker_sees_who_is_there_and_who_leads,
        r27_a_ticker_that_ended_without_its_resignation_is_no_stranger,
        a_ticker_that_is_gone_is_forgotten,
        terms_are_renewed_together_and_lost_one_by_one,
        terms_are_resigned_together_and_only_those;
    grow:
        due_schedules_are_those_of_the_partitions_asked_for,
        r26_fewer_partitions_are_refused_and_the_same_number_is_no_change,
        r27_a_ticker_that_cannot_follow_the_map_is_named_and_nothing_changes,
        r28_growing_touches_no_execution_and_no_outbox_row,
        r29_of_two_grows_at_once_one_wins,
        r29_a_grow_that_fails_in_the_middle_changes_nothing,
        r29_a_grow_waits_for_planners_and_gives_up_in_time,
        r31_the_old_map_plans_nothing_and_the_new_one_everything,
        a_registration_that_races_a_grow_has_the_right_partition,
        a_grow_adds_what_is_missing_and_keeps_epochs_and_zone_data,
        only_possible_numbers_of_partitions_are_taken;
    schedules:
        r66_name_is_unique_among_live,
        a_registered_schedule_is_what_was_said,
        a_removed_name_can_be_used_again,
        bad_definitions_are_refused,
        r79_instants_are_utc_in_any_session_zone;
    planning:
        a_fire_is_planned_with_its_shards_and_outbox_rows,
        a_fault_takes_a_schedule_out_of_planning,
        p38_an_unreadable_schedule_gets_a_fault_and_stops_no_other,
        a_schedule_ends_with_its_last_instant,
        a_missed_range_is_stored_with_the_cursor,
        a_late_fire_has_its_whole_time_to_start,
        due_schedules_are_those_to_look_at,
        r83_dispatch_carries_its_identity,
        r70_a_sharded_fire_is_n_executions_of_their_own,
        r73_shards_are_pinned_when_planned;
    cursor:
        the_same_step_twice_changes_nothing,
        a_stale_term_writes_nothing,
        a_step_ahead_of_the_clock_is_not_moved,
        a_locked_schedule_stops_no_other,
        p58_one_of_two_planners_moves_the_cursor,
        p34_a_changed_schedule_is_read_again,
        p37_cursor_and_outbox_move_together,
        a_step_too_large_for_one_statement_is_refused;
    overlap:
        skip_passes_what_comes_before_the_end_as_one_range,
        queue_one_holds_one_fire_and_coalesces_the_rest,
        p46_skip_starts_no_second_fire_before_the_first_has_ended,
        p64_a_new_leader_skips_while_a_shard_lives,
        of_two_planners_at_once_one_starts_a_fire,
        an_edit_of_the_policy_counts_from_the_next_plan_on,
        a_step_of_several_instants_is_refused_unless_they_may_overlap,
        downtime_of_a_skipping_schedule_is_two_ranges;
    held:
        replace_cancels_what_is_unfinished_and_fires_after_it,
        a_replaced_unknown_execution_is_ended_by_its_probe,
        a_replaced_unknown_execution_is_escalated,
        of_two_sweeps_at_once_one_lets_a_fire_go,
        fires_that_stay_held_hide_none_behind_them,
        a_held_fire_that_ended_makes_room_for_another,
        triggers_and_retries_count_as_unfinished,
        law_10_a_held_fire_is_not_forgotten,
        a_locked_execution_delays_no_plan_and_no_sweep,
        a_held_fire_outlives_its_schedule;
    plans:
        what_is_unfinished_is_found_by_its_index;
    edits:
        p08_a_changed_cron_does_not_fire_at_once,
        an_edit_lets_the_ticker_plan_what_is_due,
        what_was_missed_is_judged_by_the_definition_of_its_time,
        what_no_ticker_planned_before_an_edit_is_one_range,
        a_pause_lets_the_ticker_plan_what_is_due,
        p48_a_pause_is_one_range_and_resuming_fires_nothing,
        edits_race_a_planner_without_a_gap,
        an_edit_of_other_fields_keeps_cursor_and_next_instant;
    changes:
        a_change_is_made_by_compare_and_set,
        two_edits_in_one_millisecond_are_two_versions,
        an_edit_mends_a_faulted_schedule,
        a_single_instant_can_be_set_again,
        a_first_edit_records_what_the_timing_was,
        law_02_each_instant_by_the_timing_of_its_time,
        an_interval_keeps_its_anchor_while_its_period_stays;
    definitions:
        a_definition_is_known_since_it_was_first_seen,
        r68_a_changed_definition_updates_the_row_and_an_unregistered_one_keeps_its_fires,
        p07_many_syncs_at_once_keep_one_schedule_without_a_gap,
        an_older_definition_takes_over_when_no_session_reports_the_current,
        a_forgotten_definition_stands_above_none,
        an_operators_edit_stands_until_it_is_reset,
        a_schedule_of_the_api_is_not_touched_by_code_of_its_name,
        only_what_the_whole_fleet_stopped_to_define_is_retired,
        what_ended_sessions_reported_is_forgotten,
        what_an_operator_removed_is_made_by_a_start_and_what_was_retired_by_any_repeat,
        a_start_and_a_retirement_leave_the_schedule_standing;
    outbox:
        two_relays_share_the_outbox_disjointly,
        a_lease_that_ran_out_returns_the_rows,
        paused_lanes_are_skipped,
        published_rows_are_gone,
        rows_of_ended_executions_are_not_sent,
        only_what_a_lost_stream_held_is_sent_again,
        a_stream_mark_moves_by_compare_and_set,
        queues_are_rows_known_by_name,
        each_dispatch_has_a_number_of_its_own,
        a_claim_deals_the_limit_out_to_the_lanes,
        a_deep_lane_that_is_paused_is_not_walked;
    lost:
        r47_five_dispatches_that_an_idle_fleet_left_are_a_dead_letter,
        r47_a_fleet_that_is_busy_away_or_another_counts_nothing,
        a_lost_dispatch_waits_twice_as_long_after_each_loss,
        only_what_was_sent_and_waits_is_overdue,
        overdue_dispatches_are_taken_lane_by_lane,
        of_two_relays_that_find_a_loss_one_sends_again,
        queues_are_idle_while_a_live_worker_has_had_free_slots;
    enqueue:
        r67_each_one_shot_is_answered_with_its_id,
        a_key_names_one_execution_of_a_job,
        an_id_that_is_there_takes_no_other_key,
        a_key_enqueued_twenty_times_at_once_is_one_execution,
        r69_one_shot_is_durable,
        enqueue_in_follows_the_callers_transaction,
        what_is_out_of_bounds_is_refused_by_name,
        r67_a_trigger_fires_now_and_is_answered_with_its_fire;
    claim:
        a_claim_returns_all_that_a_handler_needs,
        r16_expiry_is_judged_by_database_time,
        r17_one_claim_wins_the_race,
        a_repeated_claim_is_not_charged_twice,
        every_refusal_is_definite_and_changes_nothing,
        own_dispatch_is_never_refused_as_not_due,
        a_lost_session_claims_nothing,
        answers_stand_in_the_order_of_the_asks,
        two_asks_for_one_execution_in_a_batch_yield_one_claim,
        r84_running_witness_before_business,
        r113_error_in_the_middle_of_a_claim_batch_releases_it;
    commit:
        complete_ends_it_with_its_output,
        an_error_is_tried_again_after_its_delay,
        the_last_attempt_ends_it,
        snooze_and_release_give_the_charge_back,
        fail_and_cancel_end_it_for_good,
        a_requested_cancel_ends_what_would_run_again,
        text_of_handlers_is_made_fit_for_the_ledger,
        r113_error_in_the_middle_of_a_commit_batch_releases_it,
        a_handler_that_has_not_stopped_is_a_timeout_where_it_may_be_repeated,
        a_handler_that_has_not_stopped_leaves_an_unrepeatable_execution_unknown;
    repeats:
        a_repeated_commit_answers_as_the_first_did,
        of_all_words_about_an_attempt_one_has_ended_it,
        a_repeated_commit_is_accepted_after_the_next_claim,
        duplicates_in_one_batch_are_one_result,
        a_late_commit_settles_an_unknown_execution;
    retry:
        r71_only_the_failed_shard_retries,
        r82_four_identities_are_distinct,
        r85_four_times_move_apart,
        p26_retrying_a_unique_job_has_a_defined_result,
        a_retry_repeats_the_shard_with_a_whole_budget,
        a_retry_of_a_late_fire_has_the_time_that_was_set,
        only_what_ended_without_success_is_retried,
        of_two_retries_at_once_one_wins;
    cancels:
        a_cancel_in_every_state_has_one_answer,
        what_was_cancelled_while_it_waited_is_neither_sent_nor_claimed,
        r09_only_a_worker_that_looks_for_it_is_said_to_be_told,
        a_cancel_racing_a_result_is_decided_by_the_row,
        a_cancel_racing_a_claim_is_decided_by_the_row,
        an_unknown_execution_ends_by_its_late_result,
        an_unknown_execution_is_ended_by_a_cancel,
        a_locked_execution_keeps_no_other_from_its_request;
    transaction:
        commit_in_follows_the_callers_transaction,
        commit_in_takes_every_outcome,
        a_stale_commit_in_changes_nothing,
        a_refused_commit_in_leaves_the_callers_transaction_usable;
    idempotency:
        r15_of_a_hundred_callers_one_executes,
        r15_a_released_key_is_free_at_once,
        r17_of_fifty_one_takes_over_an_expired_key,
        r18_each_takeover_raises_the_generation_of_the_token,
        r19_a_stale_owner_changes_nothing_and_learns_it,
        a_lost_reply_is_asked_for_again,
        an_extended_lease_is_not_taken_over,
        a_mark_follows_the_callers_transaction,
        an_open_mark_makes_nobody_wait,
        settled_and_abandoned_keys_are_forgotten,
        keys_leases_and_results_out_of_bounds_are_refused;
    dead:
        dead_letters_are_listed_newest_first,
        an_unreadable_dead_letter_stops_no_other_and_can_be_discarded,
        a_replayed_message_runs_as_a_one_shot,
        what_can_never_run_is_not_replayed,
        a_discarded_letter_loses_its_body_and_stays,
        a_buried_dispatch_ends_its_execution,
        an_overtaken_dispatch_is_only_dropped,
        a_replayed_dispatch_repeats_its_execution,
        of_two_replays_at_once_one_wins,
        a_stale_message_keeps_its_content_type,
        a_dead_letter_of_an_older_build_is_shown;
    checkpoints:
        a_checkpoint_goes_from_attempt_to_attempt_until_success,
        a_checkpoint_of_another_claim_changes_no_row,
        a_checkpoint_is_bounded,
        r39_what_found_no_slot_goes_back_without_a_charge_and_says_so,
        a_release_of_its_own_claim_ends_unknown;
    fence:
        r18_each_takeover_raises_the_generation,
        r19_stale_commit_changes_no_row,
        r20_ownership_is_proved_across_handles,
        p14_late_results_of_a_superseded_attempt,
        the_last_attempts_late_result_does_not_reopen_it,
        a_result_for_nothing_is_kept_too,
        racing_owners_leave_one_result;
    submitted:
        a_policy_that_is_not_known_is_pinned_under_the_claim,
        a_new_key_is_recorded_and_claimed_in_one,
        a_known_key_is_not_run_again,
        a_repeated_submit_is_not_charged_twice,
        two_messages_of_one_key_in_a_batch_are_one_execution,
        a_key_submitted_twenty_times_at_once_is_one_execution,
        a_later_run_at_is_recorded_and_dispatched_when_due,
        without_a_handler_it_is_recorded_and_deferred,
        a_stale_message_is_a_dead_letter,
        an_old_message_takes_no_key,
        a_message_is_stale_before_its_key_is_forgotten,
        a_mark_of_a_wrong_clock_makes_no_fresh_message_stale,
        a_lost_session_submits_nothing,
        a_dead_letter_is_recorded_once,
        a_message_out_of_bounds_is_refused;
    sessions:
        a_session_opens_once,
        a_renewal_says_what_is_free_leaked_and_draining,
        a_renewal_extends_a_live_session_even_past_its_expiry,
        only_expired_sessions_are_lost,
        a_session_closes_with_nothing_running_or_is_lost,
        r106_a_clean_stop_causes_no_takeover,
        the_running_rows_are_those_of_the_session,
        a_session_reports_its_definitions_once,
        requests_to_cancel_are_told_to_the_session_that_runs_them,
        a_closed_store_says_so_and_the_ledger_lives_on;
    takeover:
        r107_needs_failover_is_durable,
        r109_exactly_one_grabber,
        r110_a_dead_grabber_returns_the_item,
        a_missing_session_counts_as_lost,
        a_passed_deadline_is_a_timeout,
        a_lost_last_attempt_fails_and_an_unrepeatable_one_is_unknown,
        a_requested_cancel_ends_what_was_lost,
        a_result_and_a_takeover_race_for_the_row;
    sweepers:
        p24_a_sweep_that_acts_late_takes_nothing_that_was_taken_up_again,
        p24_a_session_renewed_after_the_look_is_not_lost;
    sweeps:
        unknown_is_escalated_once_after_its_time,
        r43_dispatching_is_never_permanent,
        due_rows_are_dispatched_once,
        what_waits_with_a_cancel_request_is_cancelled,
        p11_unknown_kind_is_never_discarded,
        keys_are_forgotten_some_time_after_the_end,
        a_clock_anomaly_is_recorded;
    probes:
        r86_a_lost_report_is_unknown_and_a_probe_reconciles_it,
        a_probe_that_is_claimed_again_is_the_same_and_no_others,
        of_two_workers_one_makes_the_probe,
        not_done_is_another_attempt_within_the_budget,
        not_done_counts_only_a_lease_after_the_loss,
        in_progress_is_asked_again_ever_less_often,
        cannot_tell_is_an_operators,
        a_handler_that_has_not_stopped_is_probed_too,
        a_lost_probe_is_taken_back_and_its_verdict_refused,
        a_probe_past_its_deadline_may_be_claimed_by_another,
        a_probe_given_back_is_asked_at_once_and_not_counted,
        what_no_worker_can_probe_is_put_off;
    rulings:
        a_late_result_and_a_probe_are_decided_by_the_row,
        a_late_result_racing_a_probe_has_one_winner,
        an_escalation_ends_the_asking_and_not_the_answer,
        a_cancel_ends_what_is_probed,
        an_operator_decides_at_any_time,
        a_ruling_needs_a_reason_and_a_word_of_an_operator;
    declined:
        a_probe_that_a_newer_worker_has_is_left_to_it,
        a_probe_that_nobody_has_is_an_operators,
        a_probe_of_another_is_not_declined,
        a_probe_that_is_always_declined_is_escalated_in_time;
    clocks:
        r44_the_deadline_is_pinned_at_the_claim,
        r49_an_upgrade_gives_running_rows_their_deadline,
        r90_a_dispatch_after_acceptance_has_one_accepted_result,
        r106_failover_off_leaves_a_lost_execution_alone,
        a_pulse_counts_what_waits,
        p27_a_pulse_does_not_count_a_backlog;
    history:
        p28_a_long_history_under_an_open_reader_is_not_read_by_the_hot_calls,
        p50_what_is_kept_for_a_time_is_forgotten_in_batches,
        p50_what_an_attempt_leaves_behind_has_a_bound;
    retention:
        what_ended_before_the_retention_goes_with_all_that_belongs_to_it,
        what_is_not_over_stays_however_old_it_is,
        a_fire_goes_with_all_its_shards_or_not_at_all,
        the_history_begins_behind_the_last_instant_that_went,
        a_manual_fire_moves_no_history,
        an_operation_stays_until_its_last_retry_is_old_and_goes_oldest_first,
        a_key_an_outbox_row_and_an_open_dead_letter_keep_what_they_name,
        a_fire_that_another_is_held_behind_stays,
        a_walk_goes_on_behind_what_stays_and_begins_anew,
        two_sweeps_at_once_delete_nothing_twice,
        a_locked_row_delays_no_sweep_and_splits_no_fire,
        tombstones_go_when_nothing_of_them_is_left,
        refused_results_and_dead_letters_go_by_their_own_age,
        sessions_and_terms_go_when_no_row_names_them;
    bounds:
        fires_with_long_histories_go_in_several_calls,
        a_history_longer_than_a_call_goes_before_its_execution,
        a_long_history_of_shards_goes_before_the_fire_and_moves_nothing,
        a_long_history_is_read_in_portions,
        an_id_that_begins_with_no_instant_keeps_nothing_for_ever,
        keys_that_stay_hide_none_behind_them,
        a_look_at_keys_reads_no_more_than_its_limit,
        sessions_go_however_much_waits,
        a_kind_that_cannot_go_keeps_no_other;
    purge:
        p50_history_past_its_retention_is_deleted_and_the_size_stays,
        a_purge_reads_what_it_deletes_and_nothing_where_nothing_is_old;
    inspect:
        executions_are_listed_by_every_filter,
        a_fires_results_stand_by_shard,
        an_executions_story_is_told_in_order,
        fires_and_sessions_are_listed_newest_first,
        queues_are_listed_with_what_waits_in_them,
        what_did_not_fire_is_counted_by_reason_and_the_held_fire_is_named;
    audit:
        a_fresh_ledger_exercises_no_law,
        a_ledger_with_work_keeps_every_law,
        an_audit_reads_only_and_bounds_its_examples;
    laws:
        law_01_one_fire_per_instant,
        law_02_every_instant_is_accounted_for,
        law_02_no_instant_is_invented,
        law_02_a_fire_from_before_its_schedule_is_invented,
        law_03_a_fire_has_all_its_shards,
        law_03_no_execution_is_without_its_fire,
        law_03_a_retry_repeats_its_shard,
        law_04_shards_add_up,
        law_04_a_retry_is_one_execution,
        law_10_due_work_is_represented,
        law_10_a_lane_leaves_nothing_behind,
        law_10_a_lost_stream_is_dispatched_again,
        law_11_the_outbox_drains,
        law_12_fires_are_written_inside_their_term,
        law_12_terms_do_not_overlap;
    laws_of_attempts:
        law_05_nothing_is_claimed_after_the_end,
        law_06_generations_have_no_gap,
        law_06_the_accepted_result_is_of_the_last_claim,
        law_07_claims_do_not_overlap,
        law_07_claims_end_after_they_began,
        law_08_charges_stay_in_the_budget,
        law_08_what_history_charged_is_counted,
        law_09_lost_work_does_not_stay_running,
        law_09_overdue_work_does_not_stay_running,
        law_09_counts_the_lease_that_the_session_had,
        law_09_counts_the_longest_lease_of_a_live_session,
        law_09_no_lease_lasts_for_ever,
        law_13_unknown_is_escalated,
        law_13_gives_the_sweep_its_time,
        law_14_nothing_is_claimed_after_a_cancel_request;
    migrate:
        r50_every_version_in_order,
        r50_each_version_is_a_file_in_both_dialects,
        four_migrations_at_once_run_once,
        a_failed_step_leaves_the_old_version,
        r50_rows_of_the_first_version_are_carried_over,
        r53_another_version_is_refused_with_both_named;
    install:
        r53_validate_refuses_a_schema_that_is_behind_and_changes_nothing,
        r78_migrations_are_never_run_by_connect,
        a_script_run_by_hand_gives_the_migrated_schema,
        a_script_for_another_version_does_nothing,
        r51_fresh_install_creates_only_its_own_objects,
        r51_a_role_with_a_schema_of_its_own_suffices;
    rights:
        r87_each_statement_runs_for_the_roles_whose_it_is,
        r87_no_role_has_a_right_that_none_of_its_statements_needs,
        r87_the_page_says_who_may_write_each_column,
        relay_and_ticker_read_no_payload_and_no_result;
    answers:
        r87_only_the_roles_of_an_answer_can_do_the_write,
        r87_a_callers_transaction_has_the_rights_of_its_user;
    grants:
        a_right_that_is_missing_names_the_grants,
        grants_are_what_was_named_last,
        grants_leave_tables_of_others_alone;
}

/// Runs cases of the suite once more on Postgres, each role of them under a database user of its own.
macro_rules! roles {
    ($($test:ident: $($area:ident::$case:ident),+;)+) => {
        mod roles {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::users::with_users_of_the_server(async |users| {
                    $(crate::fixture::on_postgres(async |ledger| {
                        users.live(ledger, crate::$area::$case).await;
                    })
                    .await;)+
                })
                .await;
            })+
        }
    };
}

roles! {
    r87_a_ticker_leads_and_plans_with_its_own_rights:
        leadership::p03_one_winner_by_returned_row,
        roster::each_ticker_sees_who_is_there_and_who_leads,
        roster::terms_are_resigned_together_and_only_those,
        planning::a_fire_is_planned_with_its_shards_and_outbox_rows,
        planning::a_fault_takes_a_schedule_out_of_planning,
        overlap::queue_one_holds_one_fire_and_coalesces_the_rest,
        held::replace_cancels_what_is_unfinished_and_fires_after_it;
    r87_a_ticker_sweeps_and_forgets_with_its_own_rights:
        sweeps::unknown_is_escalated_once_after_its_time,
        sweeps::due_rows_are_dispatched_once,
        sweeps::keys_are_forgotten_some_time_after_the_end,
        sweeps::a_clock_anomaly_is_recorded,
        takeover::a_lost_last_attempt_fails_and_an_unrepeatable_one_is_unknown,
        definitions::only_what_the_whole_fleet_stopped_to_define_is_retired,
        idempotency::settled_and_abandoned_keys_are_forgotten,
        clocks::a_pulse_counts_what_waits,
        retention::what_ended_before_the_retention_goes_with_all_that_belongs_to_it,
        retention::tombstones_go_when_nothing_of_them_is_left,
        retention::refused_results_and_dead_letters_go_by_their_own_age,
        retention::sessions_and_terms_go_when_no_row_names_them;
    r87_a_relay_publishes_with_its_own_rights:
        outbox::two_relays_share_the_outbox_disjointly,
        outbox::only_what_a_lost_stream_held_is_sent_again,
        outbox::a_stream_mark_moves_by_compare_and_set,
        lost::r47_five_dispatches_that_an_idle_fleet_left_are_a_dead_letter,
        lost::queues_are_idle_while_a_live_worker_has_had_free_slots,
        dead::a_buried_dispatch_ends_its_execution;
    r87_a_worker_works_with_its_own_rights:
        claim::a_claim_returns_all_that_a_handler_needs,
        repeats::a_late_commit_settles_an_unknown_execution,
        fence::p14_late_results_of_a_superseded_attempt,
        checkpoints::a_checkpoint_goes_from_attempt_to_attempt_until_success,
        submitted::a_policy_that_is_not_known_is_pinned_under_the_claim,
        submitted::without_a_handler_it_is_recorded_and_deferred,
        submitted::a_stale_message_is_a_dead_letter,
        sessions::a_renewal_says_what_is_free_leaked_and_draining,
        sessions::requests_to_cancel_are_told_to_the_session_that_runs_them,
        idempotency::r17_of_fifty_one_takes_over_an_expired_key,
        probes::r86_a_lost_report_is_unknown_and_a_probe_reconciles_it,
        probes::a_probe_given_back_is_asked_at_once_and_not_counted,
        declined::a_probe_that_a_newer_worker_has_is_left_to_it;
    r87_clients_and_operators_act_with_their_own_rights:
        enqueue::r67_each_one_shot_is_answered_with_its_id,
        enqueue::r67_a_trigger_fires_now_and_is_answered_with_its_fire,
        edits::p48_a_pause_is_one_range_and_resuming_fires_nothing,
        schedules::a_removed_name_can_be_used_again,
        cancels::a_cancel_in_every_state_has_one_answer,
        retry::r71_only_the_failed_shard_retries,
        rulings::an_operator_decides_at_any_time,
        dead::a_replayed_dispatch_repeats_its_execution,
        dead::a_discarded_letter_loses_its_body_and_stays,
        grow::a_grow_adds_what_is_missing_and_keeps_epochs_and_zone_data,
        inspect::executions_are_listed_by_every_filter,
        inspect::an_executions_story_is_told_in_order,
        audit::a_ledger_with_work_keeps_every_law;
}

/// Asks this very binary which tests it has: a case that exists for one store only, or that is
/// not in the list, fails here.
#[test]
fn both_stores_run_the_same_cases() {
    let binary = std::env::current_exe().unwrap();
    let listed = std::process::Command::new(binary)
        .args(["--list", "--format=terse"])
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let of = |store: &str| {
        let mut names: Vec<&str> = listed
            .lines()
            .filter_map(|line| {
                line.strip_prefix(store)?
                    .strip_prefix("::")?
                    .strip_suffix(": test")
            })
            .collect();
        names.sort_unstable();
        names
    };
    let mut cases = CASES.to_vec();
    cases.sort_unstable();
    assert_eq!(
        of("sqlite").len(),
        of("postgres").len(),
        "the stores run different counts"
    );
    assert_eq!(of("sqlite"), cases);
    assert_eq!(of("postgres"), cases);

    let skipped = bellwether_sandbox::shared::postgres_is_skipped();
    let postgres = if skipped {
        "SKIPPED (BELLWETHER_TEST_PG=skip)"
    } else {
        "run"
    };
    println!("{} cases on each store; Postgres: {postgres}", cases.len());
}

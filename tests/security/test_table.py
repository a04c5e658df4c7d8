"""The table of attacks, S1 to S33: which tests stand for each row, and that they are there.

What a row asks for and no test shows is said in `NOT_SHOWN`, so that nobody takes silence for a promise.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS: dict[str, tuple[str, ...]] = {
    "S1": (
        "surfaces/test_http_security.py::test_s1_no_path_answers_without_the_token",
        "surfaces/test_http_security.py::test_s1_it_listens_on_loopback_only",
        "surfaces/test_listening.py::test_s1_nobody_beyond_loopback_is_let_in_by_accident",
        "surfaces/test_listening.py::test_s1_another_machine_needs_an_allowed_name_and_the_token",
        "surfaces/test_mcp.py::test_strangers_do_not_reach_the_protocol",
    ),
    "S2": ("surfaces/test_http_security.py::test_s2_a_name_rebound_to_loopback_is_refused",),
    "S3": (
        "surfaces/test_http_security.py::test_s3_a_page_from_elsewhere_is_refused_even_with_the_token",
        "surfaces/test_http_security.py::test_s3_no_other_protocol_is_spoken",
    ),
    "S4": (
        "surfaces/test_http_security.py::test_s4_only_json_is_read",
        "surfaces/test_http_security.py::test_s4_no_cookie_opens_anything",
        "security/test_doors.py::test_s4_a_cookie_opens_things_for_our_own_page_only",
    ),
    "S5": (
        "surfaces/test_http_security.py::test_s5_a_token_in_the_address_is_refused_before_it_is_used",
        "surfaces/test_http_security.py::test_s5_the_token_is_kept_in_its_file_and_nowhere_else",
        "surfaces/test_http_security.py::test_s5_nothing_is_logged_or_kept_by_a_browser",
        "security/test_doors.py::test_s5_a_code_is_changed_for_a_cookie_once_and_at_one_place",
        "security/test_doors.py::test_s5_a_code_is_good_for_half_a_minute",
        "security/test_doors.py::test_s5_a_cookie_without_the_key_of_its_page_opens_nothing",
        "security/test_doors.py::test_s5_what_a_page_sends_opens_one_gateway_process_at_one_port",
        "surfaces/test_dashboard.py::"
        "test_s5_an_open_page_shows_and_sends_nothing_to_another_program_at_its_port",
        "surfaces/test_page.py::test_s5_a_code_leaves_the_address_and_lets_in_one_browser_once",
        "surfaces/test_devices.py::test_s5_a_code_for_a_phone_is_good_once_and_for_ten_minutes",
        "surfaces/test_devices.py::test_s5_the_second_use_of_a_code_signs_out_the_first_phone",
        "surfaces/test_devices.py::"
        "test_s5_a_code_that_is_used_twice_before_the_first_is_let_in_opens_nothing",
        "surfaces/test_devices.py::test_s5_a_cookie_alone_lists_and_revokes_nothing",
    ),
    "S6": (
        "surfaces/test_http_security.py::test_s6_guessing_is_slowed_down_and_never_keeps_the_owner_out",
        "surfaces/test_http_security.py::test_s6_whoever_says_nothing_is_cut_and_only_so_many_are_held",
        "surfaces/test_http_security.py::test_s6_many_who_come_at_once_and_speak_are_all_answered",
    ),
    "S7": (
        "surfaces/test_http_security.py::test_s7_scopes_are_the_servers_affair",
        "surfaces/test_http_security.py::test_s7_a_changed_token_opens_nothing_from_then_on",
        "security/test_doors.py::test_s7_a_rotated_token_ends_streams_and_cookies_within_a_second",
        "security/test_doors.py::test_s7_a_cookie_has_the_scopes_of_the_token_behind_it",
        "surfaces/test_devices.py::test_s7_a_revoked_device_and_its_open_stream_end_at_once",
        "surfaces/test_devices.py::test_s7_a_token_sees_and_revokes_its_own_devices_only",
        "test_push.py::test_s7_a_rotated_token_ends_the_notifications_of_its_devices",
        "test_push.py::test_s7_only_a_signed_in_page_with_the_right_to_write_is_notified",
    ),
    "S8": (
        "engine/test_session_tools.py::test_agent_acts_on_its_descendants_and_finds_nobody_else",
        "engine/test_session_tools.py::test_history_of_a_child_is_read_and_of_nobody_else",
        "transactions/test_targets.py::test_an_agent_finds_nothing_that_is_not_below_it",
        "surfaces/test_mcp.py::test_a_client_sees_and_touches_its_own_tree_only",
    ),
    "S9": (
        "core/test_authority.py::test_an_agent_touches_itself_and_its_descendants_exactly_as_the_table_says",
        "core/test_authority.py::test_in_any_tree_control_reaches_descendants_and_nobody_else",
        "engine/test_verbs.py::test_what_is_denied_leaves_no_trace",
    ),
    "S10": (
        "crash/test_races.py::test_of_many_processes_that_want_the_last_slot_exactly_one_gets_it",
        "crash/test_races.py::test_processes_that_spawn_in_every_way_at_once_are_never_seen_over_a_limit",
    ),
    "S11": (
        "core/test_admission.py::test_id_that_is_not_exactly_the_allowed_one_is_refused",
        "core/test_keys.py::test_only_a_well_formed_agent_id_passes",
    ),
    "S12": (
        "core/test_authority.py::test_in_ten_thousand_random_spawns_no_child_can_do_more_than_its_parent",
        "core/test_authority.py::test_a_right_that_grew_is_noticed",
    ),
    "S13": (
        "core/test_fence.py::test_a_hundred_thousand_hostile_texts_come_back_exactly",
        "core/test_wording.py::test_outside_the_fences_nothing_depends_on_what_the_child_wrote",
        "transactions/test_payload.py::test_text_that_looks_like_our_own_lines_and_fences_comes_back_as_it_was_written",
        "core/test_taint.py::test_one_foreign_text_taints_its_turn_and_no_later_one",
        "engine/test_questions.py::test_turn_that_has_read_untrusted_text_asks_before_it_uses_a_shell_or_reaches_out",
    ),
    "S14": (
        "core/test_wording.py::test_only_a_whole_reply_is_a_token",
        "core/test_pingpong.py::test_a_token_inside_a_text_is_text",
        "transactions/test_words.py::test_approval_of_a_session_that_is_not_the_requester_is_refused",
        "transactions/test_questions.py::test_decision_is_bound_to_the_words_that_were_shown",
    ),
    "S15": (
        "core/test_attachments.py::test_each_bad_name_is_refused_with_its_code",
        "tools/test_task_files.py::test_nobody_reads_through_a_link_or_a_name_with_a_path",
        "tools/test_files.py::test_a_path_that_leaves_the_workspace_or_is_no_file_is_refused_by_name",
    ),
    "S16": (
        "tools/test_task_files.py::test_a_directory_swapped_for_a_link_while_it_is_removed_loses_nothing_outside",
        "tools/test_sandbox_isolation.py::test_folder_swapped_for_a_link_while_removed_loses_nothing_outside",
    ),
    "S17": (
        "security/test_supply.py::test_s17_sql_made_from_strings_is_an_error_of_the_linter",
        "security/test_doors.py::test_s17_words_of_sql_are_words_in_every_field",
        "transactions/test_targets.py::test_what_means_nothing_is_unknown",
    ),
    "S18": (
        "surfaces/test_http_security.py::test_s18_a_body_that_says_it_is_too_large_is_not_read",
        "surfaces/test_http_security.py::test_s18_a_flood_costs_no_memory",
        "surfaces/test_http_security.py::test_s18_an_error_repeats_at_most_a_glance_of_what_was_given",
        "surfaces/test_http_events.py::test_whoever_does_not_read_is_let_go_with_the_place_to_come_back_to",
    ),
    "S19": (
        "surfaces/test_upkeep.py::test_s19_an_export_has_no_secret_unless_somebody_wants_it",
        "tools/test_shell.py::test_environment_is_the_allow_list_only",
        "tools/test_shell.py::test_our_own_secrets_cannot_be_allowed",
        "tools/test_mcp_servers.py::test_provider_key_never_reaches_a_server",
        "surfaces/test_ending.py::test_its_log_is_private_has_a_line_per_event_no_secret_and_a_bound",
        "surfaces/test_doctor.py::test_a_bundle_has_no_secret_and_no_words_of_anybody",
        "core/test_redaction.py::test_a_secret_is_taken_out_and_marked",
    ),
    "S20": (
        "surfaces/test_http_security.py::test_s20_the_files_are_their_owners_only",
        "security/test_doors.py::test_s20_a_new_token_is_its_owners_only",
        "store/test_state_directory.py::test_a_link_or_a_file_in_its_place_is_refused",
        "surfaces/test_doctor.py::test_what_others_could_read_is_found_and_mended",
    ),
    "S21": (
        "tools/test_web_fetch.py::test_no_spelling_of_a_private_address_is_ever_connected_to",
        "tools/test_web_fetch.py::test_no_chain_of_redirects_ends_at_a_private_address",
        "tools/test_web_fetch.py::test_a_name_is_resolved_once_and_what_it_says_later_does_not_matter",
        "test_push.py::test_s21_an_endpoint_is_a_public_name_with_tls",
        "test_push.py::test_s21_a_name_that_leads_into_the_own_network_is_not_connected_to",
        "test_push.py::test_s21_a_stored_endpoint_is_checked_again_before_it_is_used",
    ),
    "S22": (
        "tools/test_sandbox_escapes.py::test_escape_leaves_nothing_outside",
        "tools/test_sandbox_escapes.py::test_witness_sees_the_same_attempt_without_walls",
        "tools/test_shell.py::test_no_sandbox_is_refused_with_a_remedy",
        "security/test_late_import.py::test_module_written_by_a_child_is_not_loaded_by_a_program_in_its_workspace",
        "security/test_late_import.py::test_module_written_by_a_child_is_not_loaded_by_a_gateway_served_in_its_workspace",
    ),
    "S23": (
        "tools/test_sandbox_escapes.py::test_fork_bomb_meets_the_process_limit",
        "tools/test_sandbox_escapes.py::test_endless_output_is_ended_and_kept_small",
        "security/test_doors.py::test_s23_whoever_asks_too_often_is_told_when_to_come_back",
    ),
    "S24": (
        "engine/test_budgets.py::test_children_on_one_purse_overspend_by_less_than_the_last_call_reserved",
        "core/test_budget.py::test_calls_at_the_same_time_never_overspend_by_more_than_the_last_one_reserved",
    ),
    "S25": (
        "tools/test_mcp_servers.py::test_changed_description_disables_the_tool_until_it_is_approved",
        "api/test_changed_tools.py::"
        "test_tool_that_changed_between_two_starts_is_withheld_until_a_person_approves_it",
        "tools/test_mcp_http.py::test_redirect_elsewhere_is_not_followed_with_our_headers",
        "surfaces/test_mcp.py::test_a_token_does_over_mcp_what_its_scopes_say",
    ),
    "S26": (
        "surfaces/test_page.py::test_s26_no_word_of_a_child_is_ever_run_or_fetched",
        "surfaces/test_page.py::test_s26_the_files_of_the_page_hold_nothing_and_run_nothing_foreign",
        "surfaces/test_api_page.py::test_s26_hostile_strings_are_text_here_too",
        "surfaces/test_installable.py::test_s26_the_content_policy_is_extended_by_manifest_and_worker_only",
        "test_push.py::test_a_decision_and_the_end_of_all_tasks_are_notified_in_generic_words",
    ),
    "S27": (
        "transactions/test_reads.py::test_what_is_to_be_approved_is_shown_with_its_invisible_characters",
        "surfaces/test_page.py::test_s27_what_cannot_be_seen_is_shown_as_an_escape",
    ),
    "S28": (
        "surfaces/test_cli.py::test_what_a_child_calls_itself_cannot_touch_the_terminal",
        "core/test_wording.py::test_what_cannot_be_seen_is_shown_as_an_escape",
    ),
    "S29": (
        "security/test_supply.py::test_s29_every_locked_package_has_one_version_and_hashes",
        "security/test_supply.py::test_s29_what_is_declared_is_locked_and_bounded",
        "security/test_supply.py::test_s29_the_bill_of_materials_has_every_locked_file",
        "security/test_supply.py::test_s29_a_gateway_is_started_without_code_of_the_directory_we_stand_in",
        "security/test_release.py::test_s29_whoever_builds_the_same_commit_gets_the_same_bytes",
        "security/test_release.py::test_s29_a_signature_holds_for_its_key_and_for_these_bytes_only",
        "security/test_release.py::test_s29_an_audit_that_could_not_be_made_is_an_error_that_names_the_remedy",
    ),
    "S30": (
        "store/test_migrations.py::test_a_newer_schema_is_refused_with_both_versions_and_a_remedy",
        "api/test_lost_store.py::test_a_store_that_cannot_be_read_stops_the_start_and_nothing_is_deleted",
    ),
    "S31": (
        "surfaces/test_http_security.py::"
        "test_s31_a_command_needs_a_known_channel_a_bound_thread_and_a_named_sender",
        "api/test_senders.py::test_an_approval_needs_the_approve_right_of_account_and_token",
        "core/test_senders.py::test_an_unnamed_account_has_no_rights_and_no_account_more_than_its_token",
    ),
    "S32": (
        "docs/test_readme.py::test_no_agent_reads_the_token_that_the_example_left_in_the_folder",
        "tools/test_protected_files.py::test_commands_neither_read_nor_write_a_state_directory",
        "tools/test_protected_files.py::test_file_tools_refuse_a_state_directory_made_at_any_time",
        "tools/test_new_state.py::test_a_running_program_never_reads_a_state_directory_that_clutch_makes",
        "tools/test_new_state.py::test_a_program_that_sees_a_state_directory_moved_in_is_ended",
        "tools/test_protected_files.py::test_commands_read_and_do_not_change_instructions_config_agents_and_skills",
        "tools/test_protected_files.py::test_nested_repositories_are_read_only",
        "tools/test_protected_files.py::test_programs_planted_in_a_new_repository_do_not_run_outside",
        "api/test_config.py::"
        "test_a_child_changes_neither_the_config_in_use_nor_the_instructions_of_its_parent",
        "api/test_config.py::test_a_config_that_waits_in_a_workspace_for_its_state_directory_is_not_loaded",
        "api/test_large_results.py::test_a_large_result_is_read_by_its_own_session_and_by_no_sibling",
    ),
    "S33": (
        "agents/test_crew.py::test_each_child_of_a_crew_has_its_own_instructions_tools_and_model",
        "agents/test_crew.py::test_a_changed_file_is_withheld_until_it_is_approved_again",
        "agents/test_crew.py::test_a_skill_is_loaded_with_its_files_and_narrows_the_run",
        "core/test_roles.py::test_a_role_has_no_tool_that_its_parent_lacks",
        "core/test_definitions.py::test_only_what_a_person_wrote_or_approved_is_in_force",
    ),
}
NOT_SHOWN = {
    "S29": "known vulnerabilities: `make audit`, which needs the network; nothing has been released yet",
}


def test_the_page_for_users_tells_of_every_row() -> None:
    told = re.findall(
        r"\bS\d+\b", (TESTS.parent / "docs" / "operate" / "security.md").read_text(encoding="utf-8")
    )
    assert set(told) == set(ROWS) | set(NOT_SHOWN)


def test_every_row_has_a_test_or_says_why_not() -> None:
    assert set(ROWS) | set(NOT_SHOWN) == {f"S{number}" for number in range(1, 34)}


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    for named in ROWS[row]:
        file, _, name = named.partition("::")
        parsed = ast.parse((TESTS / file).read_text())
        functions = {
            one.name for one in parsed.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, named

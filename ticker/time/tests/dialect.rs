//! What is refused, what is said instead, and what different spellings mean.

#![expect(clippy::unwrap_used, reason = "tests")]

use bellwether_time::{Class, Cron, Timing, next_n};
use chrono::{DateTime, Utc};

fn refusal(expr: &str) -> bellwether_time::Rejected {
    Cron::parse(expr, "UTC").unwrap_err()
}

#[test]
fn every_refusal_has_its_code() {
    let long = format!("{} * * * *", ["1"; 200].join(","));
    let cases = [
        (
            "bare_start_step",
            [
                "5/10 * * * *",
                "0 8/2 * * *",
                "0 0 * * MON/2",
                "0 0 0 1 1 * 2027/2",
            ]
            .as_slice(),
        ),
        (
            "step_too_large",
            &[
                "*/60 * * * *",
                "0 */24 * * *",
                "0 0 1-5/5 * *",
                "0 0 * * */7",
                "*/99999999999 * * * *",
            ],
        ),
        (
            "ambiguous_day_fields",
            &[
                "0 0 */2 * MON",
                "0 0 1 * */2",
                "0 0 1,*/9 * MON",
                "0 0 */2 * FRIL",
            ],
        ),
        (
            "wrapped_range",
            &[
                "0 22-2 * * *",
                "0 0 * * FRI-MON",
                "0 0 * * 5-0",
                "0 0 * NOV-FEB *",
                "0 0 * * SUN-SUN",
            ],
        ),
        (
            "bare_L_in_dow",
            &["0 0 * * L", "0 0 * * MON,L", "0 0 * * l"],
        ),
        (
            "empty_list_item",
            &[
                "1,,2 * * * *",
                ", * * * *",
                "0 0 1, * *",
                "0 0 * * ,MON",
                "0 0 * * +",
            ],
        ),
        ("step_zero", &["*/0 * * * *", "0 0 1-5/0 * *"]),
        (
            "out_of_range",
            &[
                "60 * * * *",
                "0 24 * * *",
                "0 0 0 * *",
                "0 0 32 * *",
                "0 0 * 13 *",
                "0 0 * * 8",
                "0 0 L-31 * *",
                "0 0 32W * *",
                "0 0 * * 8#1",
                "0 0 0 1 1 * 1969",
                "0 0 0 1 1 * 2200",
                "99999999999999 * * * *",
            ],
        ),
        (
            "bad_character",
            &[
                "a * * * *",
                "1.5 * * * *",
                "-5 * * * *",
                "1- * * * *",
                "1-2-3 * * * *",
                "*/ * * * *",
                "*/2/3 * * * *",
                "? * * * *",
                "0 0 ?,1 * *",
                "0 0 LL * *",
                "0 0 W * *",
                "0 0 1-5W * *",
                "0 0 * JANUARY *",
                "0 0 * * LW",
                "0 0 +1 * MON",
                "0 0 * * ++MON",
                "0 0 * * MON+",
                "H * * * *",
                "０ 0 * * *",
                "0 0 * *\u{a0}*",
                "0 0 * *\n*",
                "0 0 L-x * *",
                "0 0 MON * *",
            ],
        ),
        ("too_long", &[long.as_str()]),
        (
            "unknown_nickname",
            &["@reboot", "@every 5m", "@", "@dailyy"],
        ),
        ("field_count", &["", "   ", "* * * *", "* * * * * * * *"]),
        (
            "bad_nth",
            &[
                "0 0 * * MON#6",
                "0 0 * * MON#0",
                "0 0 * * MON#",
                "0 0 * * #2",
                "0 0 * * 1-5#2",
                "0 0 * * MON#1#2",
            ],
        ),
        (
            "never_fires",
            &[
                "0 0 30 2 *",
                "0 0 31 4,6,9,11 *",
                "0 0 0 29 2 * 2027",
                "0 0 30W 2 *",
                "0 0 1 * +MON#2",
            ],
        ),
    ];
    for (code, exprs) in cases {
        for expr in exprs {
            let rejected = refusal(expr);
            assert_eq!(rejected.code, code, "{expr:?}: {rejected}");
            assert!(!rejected.remedy.is_empty(), "{expr:?}");
            assert!(!rejected.to_string().contains('\n'), "{expr:?}: one line");
        }
    }
    assert_eq!(
        Cron::parse("0 0 * * *", "CST").unwrap_err().code,
        "unknown_zone"
    );
    let skipped = Cron::parse("0 0 12 30 12 * 2011", "Pacific/Apia").unwrap_err();
    assert_eq!(
        skipped.code, "never_fires",
        "the only date named does not exist there"
    );
}

#[test]
fn remedies_say_what_to_write_and_it_is_accepted() {
    let cases = [
        ("5/10 * * * *", "5-59/10", "5-59/10 * * * *"),
        ("0 8/2 * * *", "8-23/2", "0 8-23/2 * * *"),
        ("55/10 * * * *", "write 55,", "55 * * * *"),
        ("0 0 * * 7/2", "write 7,", "0 0 * * 7"),
        ("0 22-2 * * *", "22-23,0-2", "0 22-23,0-2 * * *"),
        ("0 0 * * FRI-MON", "5-6,0-1", "0 0 * * 5-6,0-1"),
        ("0 0 */2 * MON", "+MON", "0 0 */2 * +MON"),
        ("0 0 1,,2 * *", "1,2", "0 0 1,2 * *"),
        ("0 0 * * MON#6", "MON#5", "0 0 * * MON#5"),
        ("0 0 * * L", "FRIL", "0 0 * * FRIL"),
        ("*/0 * * * *", "write *", "* * * * *"),
    ];
    for (expr, remedy, fixed) in cases {
        let rejected = refusal(expr);
        assert!(rejected.remedy.contains(remedy), "{expr}: {rejected}");
        Cron::parse(fixed, "UTC").unwrap();
    }
    assert!(refusal("*/90 * * * *").remedy.contains("every 90m"));
    assert!(refusal("@every 5m").remedy.contains("interval"));
}

#[test]
fn spellings_with_one_meaning_fire_alike() {
    let pairs = [
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@yearly", "0 0 1 JAN *"),
        ("@annually", "0 0 0 1 1 *"),
        ("@monthly", "0 0 1 * ?"),
        ("@weekly", "0 0 ? * 7"),
        ("@hourly", "0 0 0-23 * * * *"),
        ("0 0 * * mon-Fri", "0 0 * * 1,2,3,4,5"),
        ("0 0 * * sat-sun", "0 0 * * 0,6"),
        ("0 0 * * 5-7", "0 0 * * FRI,SAT,SUN"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * feb,AUG *", "0 0 * 2,8 *"),
        ("0 0 * * friL", "0 0 * * 5#L"),
        ("0 0 lw * *", "0 0 LW * ?"),
        ("0 0 * * +MON", "0 0 * * MON"),
        ("\t0  0 * *   * ", "0 0 * * *"),
        ("0 0 1-31 * MON", "0 0 * * *"),
    ];
    let from: DateTime<Utc> = "2026-01-15T12:00:00Z".parse().unwrap();
    for (left, right) in pairs {
        let fires = |expr| {
            next_n(
                &Timing::Cron(Cron::parse(expr, "Europe/Berlin").unwrap()),
                from,
                20,
            )
        };
        assert_eq!(fires(left), fires(right), "{left} and {right}");
    }
}

#[test]
fn the_class_depends_on_the_hours_named_not_on_their_spelling() {
    let class = |expr| Cron::parse(expr, "Europe/Berlin").unwrap().class();
    for expr in [
        "* * * * *",
        "0 */1 * * *",
        "0 0-23 * * *",
        "5 0-11,12-23 * * *",
        "@hourly",
    ] {
        assert_eq!(class(expr), Class::Interval, "{expr}");
    }
    for expr in ["* 0-22 * * *", "*/15 2 * * *", "0 */2 * * *", "@daily"] {
        assert_eq!(class(expr), Class::Pinned, "{expr}");
    }
}

#[test]
fn the_canonical_form_is_stable() {
    let canonical = |expr| Cron::parse(expr, "UTC").unwrap().canonical().to_owned();
    assert_eq!(canonical(" 0  9 ? * mon-fri "), "0 9 * * MON-FRI");
    assert_eq!(canonical("@weekly"), "0 0 * * SUN");
    assert_eq!(canonical("0 0 0 1 1 ? 2027"), "0 0 0 1 1 * 2027");
    assert_eq!(canonical("0 0 13 * +?"), "0 0 13 * +*");
}

#[test]
fn an_expression_whose_years_are_over_is_accepted_and_ended() {
    let timing = Timing::Cron(Cron::parse("0 0 0 1 1 * 2020", "UTC").unwrap());
    assert_eq!(
        timing.next_after("2026-01-01T00:00:00Z".parse().unwrap()),
        None
    );
    assert_eq!(
        timing.next_after(DateTime::<Utc>::MIN_UTC),
        "2020-01-01T00:00:00Z".parse().ok()
    );
    assert_eq!(timing.next_after(DateTime::<Utc>::MAX_UTC), None);
    assert_eq!(
        timing.count(DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC),
        1
    );
}

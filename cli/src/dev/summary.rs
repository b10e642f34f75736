//! The end of the demo: the audit, what each process cost, and one line that says it all.

use bellwether_sandbox::Usage;

use super::kill::Kill;
use super::story::{Story, megabytes};
use super::{Dev, publisher};
use crate::command::audit::{totals, verdict};
use crate::exit::{FAILED, Failure, Result};

/// Prints the end and fails if any part of it differs from what was promised.
pub(crate) async fn print(dev: &mut Dev, story: &Story, nats: Usage) -> Result<()> {
    let laws = dev.store.audit().await?;
    dev.screen.line("\naudit")?;
    let width = laws.iter().map(|law| law.title.len()).max().unwrap_or(0);
    for law in &laws {
        dev.screen.line(&format!(
            "  law {:>2}  {:<width$} {:>6} rows  {}",
            law.law,
            law.title,
            law.looked_at,
            verdict(law)
        ))?;
        for example in &law.examples {
            dev.screen.line(&format!("          {example}"))?;
        }
    }
    dev.screen.line("\nprocess        CPU s   peak MB")?;
    let own = bellwether_sandbox::usage(std::process::id())?;
    let mut rows = vec![("dev", own), ("nats-server", nats)];
    rows.extend(
        dev.roles
            .iter()
            .map(|role| (role.name.as_str(), role.usage())),
    );
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(name, usage)| {
            let (cpu, rss) = (usage.cpu.as_secs_f64(), megabytes(usage.peak_rss));
            format!("{name:<12} {cpu:>7.1} {rss:>9.1}")
        })
        .collect();
    for row in rows {
        dev.screen.line(&row)?;
    }

    let (looked_at, violations) = totals(&laws);
    let equal = story.reports.iter().filter(|equal| **equal).count();
    // Anew, now that nobody writes any more.
    let booked = crate::demo::book::totals(&dev.folder.join("book.db"))
        .await
        .map_err(|error| Failure::new(FAILED, error.to_string()))?;
    // A book that a signal cut short is judged by what is in it.
    let complete = story.exit_after.is_some() || booked.entries >= publisher::ENTRIES;
    let exact = booked.entries == booked.numbers
        && (!story.published
            || !complete
            || (booked.entries == publisher::ENTRIES
                && booked.cents == publisher::expected_cents()));
    dev.screen.line(&format!(
        "\nreports {equal} of {} equal an independent count · {}, {} booked, sum {} · {} · \
         audit: {looked_at} rows looked at, {violations} violations",
        story.reports.len(),
        if story.published {
            format!(
                "{} entries published {} times",
                publisher::ENTRIES,
                publisher::PUBLISHES
            )
        } else {
            "publishing cut short".to_owned()
        },
        booked.entries,
        if exact { "exact" } else { "WRONG" },
        killed(&story.kills),
    ))?;
    if equal == story.reports.len() && exact && violations == 0 {
        return Ok(());
    }
    Err(Failure::new(
        FAILED,
        "the demo did not end as promised; see the lines above",
    ))
}

fn killed(kills: &[Kill]) -> String {
    let workers = if kills.len() == 1 {
        "worker"
    } else {
        "workers"
    };
    match kills.iter().filter_map(|kill| kill.taken_over_after).max() {
        Some(after) => {
            format!(
                "{} {workers} killed, taken over in {:.1} s",
                kills.len(),
                after.as_secs_f64()
            )
        }
        None => format!("{} {workers} killed", kills.len()),
    }
}

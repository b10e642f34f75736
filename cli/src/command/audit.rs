//! `bellwether audit`: the laws on a live ledger.

use bellwether_store::audit::LawReport;
use serde::Serialize;

use crate::config::Config;
use crate::exit::{FAILED, Failure, Result};
use crate::output::{self, Format};

#[derive(Serialize)]
struct Report<'a> {
    looked_at: u64,
    violations: u64,
    laws: &'a [LawReport],
}

/// The sums of an audit.
pub(crate) fn totals(laws: &[LawReport]) -> (u64, u64) {
    laws.iter().fold((0, 0), |(looked, broken), law| {
        (looked + law.looked_at, broken + law.violations)
    })
}

/// What one law's row says: a law that looked at nothing was not exercised, never passed.
pub(crate) fn verdict(law: &LawReport) -> &'static str {
    match (law.violations, law.looked_at) {
        (1.., _) => "VIOLATED",
        (0, 0) => "not exercised",
        (0, _) => "holds",
    }
}

pub(crate) async fn run(config: &Config, format: Format) -> Result<()> {
    let store = config.store("bellwether audit").await?;
    let laws = store.audit().await?;
    store.close().await;
    print(&laws, format)?;
    let (looked_at, violations) = totals(&laws);
    if violations > 0 {
        return Err(Failure::new(
            FAILED,
            format!("audit: {looked_at} rows looked at, {violations} violations"),
        ));
    }
    Ok(())
}

fn print(laws: &[LawReport], format: Format) -> Result<()> {
    let (looked_at, violations) = totals(laws);
    let report = Report {
        looked_at,
        violations,
        laws,
    };
    match format {
        Format::Json => return Ok(output::json(&report)?),
        Format::Jsonl => return Ok(output::json_line(&report)?),
        Format::Table | Format::Id => {}
    }
    let rows = laws.iter().map(|law| {
        vec![
            law.law.to_string(),
            law.title.to_owned(),
            law.looked_at.to_string(),
            law.violations.to_string(),
            verdict(law).to_owned(),
        ]
    });
    output::table(&["law", "", "looked at", "violations", ""], rows.collect())?;
    for law in laws.iter().filter(|law| law.violations > 0) {
        output::line(&format!("\nlaw {}: {}", law.law, law.title))?;
        for example in &law.examples {
            output::line(&format!("  {example}"))?;
        }
    }
    if violations == 0 {
        output::line(&format!(
            "\naudit: {looked_at} rows looked at, 0 violations"
        ))?;
    }
    Ok(())
}

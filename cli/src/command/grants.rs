//! `bellwether grants`: what the owner of the tables runs so that a role works under a database
//! user of its own.

use bellwether_store::grants::{Role, script};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::config::Config;
use crate::exit::Result;
use crate::output;

#[derive(Debug, Args)]
#[command(
    after_help = "For psql, as the owner of the tables, who ran `migrate`; again after each migration:\n\n  \
                  bellwether grants ticker --to bw_ticker | psql -v ON_ERROR_STOP=1 DATABASE"
)]
pub(crate) struct Command {
    /// What the user may be; several roles for one that is all of them
    #[arg(required = true, value_name = "ROLE", value_parser = roles())]
    roles: Vec<Role>,
    /// The database user, which is there already; it loses what else it was granted on
    /// the tables
    #[arg(long, value_name = "USER")]
    to: String,
}

fn roles() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(Role::ALL.map(Role::as_str)).try_map(|word| word.parse::<Role>())
}

pub(crate) fn run(config: &Config, command: &Command) -> Result<()> {
    let options = config.database("bellwether grants")?;
    let script = script(&options, &command.roles, &command.to)?;
    Ok(output::line(script.trim_end())?)
}

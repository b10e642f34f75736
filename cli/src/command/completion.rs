//! `bellwether completion`: a script that completes commands and flags.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::exit::Result;

#[derive(Debug, Args)]
#[command(after_help = "bash:  source <(bellwether completion bash)\n\
                        zsh:   bellwether completion zsh > \"${fpath[1]}/_bellwether\"\n\
                        fish:  bellwether completion fish | source")]
pub(crate) struct Command {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run<C: CommandFactory>(command: &Command) -> Result<()> {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(command.shell, &mut C::command(), "bellwether", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

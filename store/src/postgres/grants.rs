//! The rights of the roles as a script; see [`crate::grants`].

use super::sql;
use crate::grants::Role;

/// What `user` gets to be all of `roles`. The schema's name has no quote in it, the user's no
/// control character.
pub(crate) fn grants(schema: &str, roles: &[Role], user: &str, version: i32) -> String {
    let words: Vec<_> = roles.iter().map(|role| role.as_str()).collect();
    let begin = format!(
        "-- psql \"<database>\" -v ON_ERROR_STOP=1 -f <this file>, as the owner of the tables: the rights of\n\
         -- {}. One transaction: the first error undoes all of it. Again after each migration.\n\
         BEGIN;\n\n\
         SET LOCAL standard_conforming_strings = on;\n\
         SELECT set_config('search_path', '\"{schema}\"', true),\n       \
         set_config('bellwether.version', '{version}', true),\n       \
         set_config('bellwether.grantee', '{}', true);\n\n{}\n",
        words.join(", "),
        user.replace('\'', "''"),
        sql!("grants/check")
    );
    let user = format!("\"{}\"", user.replace('"', "\"\""));
    let granted = |text: &str| {
        // The user last: nothing is looked for in its name.
        text.replace("$2", &format!("\"{schema}\""))
            .replace("$1", &user)
    };
    let rights: Vec<_> = std::iter::once(sql!("grants/every"))
        .chain(roles.iter().map(|role| of(*role)))
        .map(granted)
        .collect();
    let granted = sql!("grants/granted");
    format!("{begin}{}\n{granted}\nCOMMIT;\n", rights.join("\n"))
}

const fn of(role: Role) -> &'static str {
    match role {
        Role::Reader => sql!("grants/reader"),
        Role::Client => sql!("grants/client"),
        Role::Relay => sql!("grants/relay"),
        Role::Ticker => sql!("grants/ticker"),
        Role::Worker => sql!("grants/worker"),
        Role::Operator => sql!("grants/operator"),
    }
}

//! `bellwether version`: the four versions that evolve apart.

use bellwether_schemas::subject::WIRE_VERSION;
use bellwether_schemas::{PLUGIN_API_LEVEL, PRODUCT_VERSION};
use bellwether_store::migrate::SCHEMA_VERSION;
use serde::Serialize;

use crate::exit::Result;
use crate::output::{self, Format};

#[derive(Serialize)]
struct Versions {
    product: &'static str,
    wire: u16,
    schema: i32,
    plugin_api: u32,
    zone_data: &'static str,
}

pub(crate) fn run(format: Format) -> Result<()> {
    let versions = Versions {
        product: PRODUCT_VERSION,
        wire: WIRE_VERSION,
        schema: SCHEMA_VERSION,
        plugin_api: PLUGIN_API_LEVEL,
        zone_data: bellwether_time::zone_data_version(),
    };
    Ok(output::one(format, &versions, "", |versions| {
        output::line(&format!(
            "bellwether {}\nwire version {}\ndatabase schema version {}\nplugin API level {}\n\
             time zone data {}",
            versions.product,
            versions.wire,
            versions.schema,
            versions.plugin_api,
            versions.zone_data
        ))
    })?)
}

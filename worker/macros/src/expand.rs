//! From a checked attribute to code.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, ExprLit, FnArg, ItemFn, Lit, Meta, Result};

use crate::arguments::{Arguments, Misfire, Retry, When};
use crate::value::DESCRIPTION_MAX;

/// The function as it was, and the type of its name that makes the `Job`.
///
/// The type is an empty enum: it takes the name in the type namespace only, and unlike a
/// module it can name a function that stands inside another function.
pub(crate) fn expand(arguments: &Arguments, function: &ItemFn) -> Result<TokenStream> {
    check(function)?;
    let visibility = &function.vis;
    let ident = &function.sig.ident;
    let name = &arguments.name;
    let mut settings = settings(arguments);
    let described = arguments.description.clone();
    if let Some(text) = described.or_else(|| documented(&function.attrs)) {
        settings.extend(quote!(.description(#text)));
    }
    let type_doc = format!("The job `{name}`, declared by the function of this name.");
    Ok(quote! {
        #function

        #[doc = #type_doc]
        #[allow(non_camel_case_types, reason = "it bears the name of its function")]
        #visibility enum #ident {}

        impl #ident {
            #[doc = "The job, to be registered with a worker."]
            #[must_use]
            #visibility fn job() -> ::bellwether_worker::Job {
                ::bellwether_worker::Job::new(#name, #ident) #settings
            }
        }
    })
}

fn check(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(Error::new(
            signature.fn_token.span(),
            "#[job] stands on an `async fn`; call blocking code through `spawn_blocking`",
        ));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new(
            signature.generics.span(),
            "a job's function has no generics: its payload is one type",
        ));
    }
    if let Some(receiver) = signature
        .inputs
        .iter()
        .find(|input| matches!(input, FnArg::Receiver(_)))
    {
        return Err(Error::new(
            receiver.span(),
            "a job is a free function, not a method",
        ));
    }
    if signature.inputs.len() > 2 {
        return Err(Error::new(
            signature.inputs.span(),
            "a job takes nothing, `Context`, a payload, or `Context` and a payload",
        ));
    }
    Ok(())
}

/// The first paragraph of a doc comment in one line, cut where a description must end.
fn documented(attributes: &[Attribute]) -> Option<String> {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let Expr::Lit(ExprLit {
            lit: Lit::Str(line),
            ..
        }) = &pair.value
        else {
            return None;
        };
        pair.path.is_ident("doc").then(|| line.value())
    });
    // A block comment is one attribute of many lines.
    let text = lines.collect::<Vec<_>>().join("\n");
    let paragraph = text
        .lines()
        .map(str::trim)
        .skip_while(|line| line.is_empty())
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    if paragraph.is_empty() {
        return None;
    }
    if paragraph.chars().count() <= DESCRIPTION_MAX {
        return Some(paragraph);
    }
    let cut = paragraph.chars().take(DESCRIPTION_MAX - 1);
    Some(cut.chain(['…']).collect())
}

fn settings(arguments: &Arguments) -> TokenStream {
    let mut calls = TokenStream::new();
    match &arguments.when {
        Some(When::Cron { expr, zone }) => calls.extend(quote!(.cron(#expr, #zone))),
        Some(When::Every(period)) => {
            let period = duration(*period);
            calls.extend(quote!(.every(#period)));
        }
        None => {}
    }
    if let Some(shards) = arguments.shards {
        calls.extend(quote!(.shards(#shards)));
    }
    if let Some(payload) = &arguments.payload {
        calls.extend(quote!(.payload(#payload)));
    }
    calls.extend(of_schedule(arguments));
    if let Some(queue) = &arguments.queue {
        calls.extend(quote!(.queue(#queue)));
    }
    if let Some(priority) = arguments.priority {
        let variant = Ident::new(priority.variant, Span::call_site());
        calls.extend(quote!(.priority(::bellwether_worker::Priority::#variant)));
    }
    if let Some(timeout) = arguments.timeout {
        let timeout = duration(timeout);
        calls.extend(quote!(.timeout(#timeout)));
    }
    if let Some(max_attempts) = arguments.max_attempts {
        calls.extend(quote!(.max_attempts(#max_attempts)));
    }
    if let Some(deadline) = arguments.start_deadline {
        let deadline = duration(deadline);
        calls.extend(quote!(.start_deadline(#deadline)));
    }
    if let Some(on_lost) = arguments.on_lost {
        let variant = Ident::new(on_lost.variant, Span::call_site());
        calls.extend(quote!(.on_lost(::bellwether_worker::OnLost::#variant)));
    }
    if let Some(probe) = &arguments.probe {
        calls.extend(quote!(.probe(#probe)));
    }
    if let Some(Retry { first, cap }) = &arguments.retry {
        let (first, cap) = (duration(*first), duration(*cap));
        calls.extend(quote! {
            .retry(::bellwether_worker::RetryPolicy { first: #first, cap: #cap })
        });
    }
    calls
}

/// What a schedule does with its instants.
fn of_schedule(arguments: &Arguments) -> TokenStream {
    let mut calls = TokenStream::new();
    if let Some(grace) = arguments.grace {
        let grace = duration(grace);
        calls.extend(quote!(.grace(#grace)));
    }
    if let Some(misfire) = &arguments.misfire {
        let variant = match misfire {
            Misfire::FireOnce => quote!(FireOnce),
            Misfire::Skip => quote!(Skip),
            Misfire::CatchUp { max, window } => {
                let window = duration(*window);
                quote!(CatchUp { max: #max, window: #window })
            }
        };
        calls.extend(quote!(.misfire(::bellwether_worker::MisfirePolicy::#variant)));
    }
    if let Some(overlap) = arguments.overlap {
        let variant = Ident::new(overlap.variant, Span::call_site());
        calls.extend(quote!(.overlap(::bellwether_worker::Overlap::#variant)));
    }
    calls
}

fn duration(value: Duration) -> TokenStream {
    let millis = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
    quote!(::core::time::Duration::from_millis(#millis))
}

//! From a checked attribute to code.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, Result};

use crate::arguments::{Arguments, When};

/// The function as it was, and the type of its name that makes the `Job`.
///
/// The type is an empty enum: it takes the name in the type namespace only, and unlike a
/// module it can name a function that stands inside another function.
pub(crate) fn expand(arguments: &Arguments, function: &ItemFn) -> Result<TokenStream> {
    check(function)?;
    let visibility = &function.vis;
    let ident = &function.sig.ident;
    let name = &arguments.name;
    let settings = settings(arguments);
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
    calls
}

fn duration(value: Duration) -> TokenStream {
    let seconds = value.as_secs();
    quote!(::core::time::Duration::from_secs(#seconds))
}

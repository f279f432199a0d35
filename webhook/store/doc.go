// Package store is for those who write a store for a webhook.Forwarder. A program that embeds a
// Forwarder does not need it: it opens one of the stores of this module, and package webhook has
// the names that it needs.
//
// To write a store:
//
//  1. Read [Store]. Begin with Put, Fetch, Settle and Heads, as the example does. A Store only
//     keeps deliveries: which of them are attempted, and when, is decided by the Forwarder.
//  2. Keep a [Delivery] as the bytes of its AppendBinary. They begin with a version. Call its Check,
//     and that of [Settlement] and [Document], before anything is stored.
//  3. Remember what was put. A [Window] does that in memory, in two generations.
//  4. Return from Put once the deliveries would survive the loss of the process, and from Settle
//     once the outcomes would. [ErrQueueFull] and [ErrTooLarge] say that a Put is over a bound.
//  5. Let concurrent calls share a commit: a [Batcher] gathers them. A [Gate] makes Close wait for
//     calls in progress, and each call after it return [ErrClosed].
//  6. Add [Inspector]. A [Listing] makes a page of List. [Pages] makes an iterator that holds no lock between two elements.
//  7. Run queuetest.Run in a test, from the first day on. Each of its cases quotes the sentence of
//     this package that the store does not keep.
//  8. Add what the store can do beyond that: [History], [Outbox] for transactions of the caller,
//     [Shared] for several processes, [Maintained] with an [Upkeep] for work in the background.
//
// Package memqueue is the smallest whole store of this module.
package store

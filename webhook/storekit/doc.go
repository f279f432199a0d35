// Package storekit has the parts that a webhook.Store needs and that are the same in all of
// them. A Window remembers which deliveries were put, so that a repeated put is left out.
// Pages makes the iterators of lists that hold no lock between two elements. For stores on a
// server, a Batcher lets concurrent calls share transactions, and a Gate waits for calls
// before the store closes.
//
// examples/store in this repository is a small store that is made with it.
package storekit

// Package storekit has parts that every webhook.Store needs. A Window remembers which
// deliveries were put, so that the store can leave out a repeated put. Pages makes iterators
// that hold no lock between two elements. An Upkeep warns of maintenance that keeps failing. For
// stores on a server, a Batcher lets concurrent calls share transactions, and a Gate makes the close
// of a store wait for calls in progress.
//
// examples/store in this repository is a small store that uses this package.
package storekit

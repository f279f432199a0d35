// Package storekit has the two parts that every webhook.Store needs and that are the same in
// all of them. A Window remembers which deliveries were put, so that a repeated put is left
// out. Pages makes the iterators of lists that hold no lock between two elements.
//
// examples/store in this repository is a small store that is made with it.
package storekit

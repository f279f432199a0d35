module github.com/hookferry/analytics

go 1.26.0

// Uploads of the client, and the embedded store, which only its importers link.
require (
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/segmentio/backo-go v1.1.0
	go.etcd.io/bbolt v1.5.0
)

// Tests.
require (
	github.com/google/go-cmp v0.7.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

// The version of each module of this repository is that of the last release, or of the first
// one. In the repository, go.work provides them (CONTRIBUTING.md, "Releases").
module github.com/hookferry/analytics/webhook/pgqueue

go 1.26.0

require github.com/hookferry/analytics v0.1.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/jackc/pgx/v5 v5.12.0
	golang.org/x/sync v0.22.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/segmentio/backo-go v1.1.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

module github.com/hookferry/analytics/examples/saas

go 1.26.0

require (
	github.com/hookferry/analytics v0.1.0
	github.com/hookferry/analytics/webhook/pgqueue v0.1.0
	github.com/jackc/pgx/v5 v5.12.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/segmentio/backo-go v1.1.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

// Until the first release, a program of your own needs these lines too, with the path of a clone.
replace (
	github.com/hookferry/analytics => ../..
	github.com/hookferry/analytics/webhook/pgqueue => ../../webhook/pgqueue
)

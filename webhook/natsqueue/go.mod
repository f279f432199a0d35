// The version of each module of this repository is that of the last release, or of the first
// one. In the repository, go.work provides them (CONTRIBUTING.md, "Releases").
module github.com/hookferry/analytics/webhook/natsqueue

go 1.26.0

require github.com/hookferry/analytics v0.1.0

require (
	github.com/nats-io/nats-server/v2 v2.12.11
	github.com/nats-io/nats.go v1.53.1
	github.com/nats-io/nuid v1.0.1
)

require (
	github.com/antithesishq/antithesis-sdk-go v0.7.0-default-no-op // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/klauspost/compress v1.19.1 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	github.com/nats-io/jwt/v2 v2.8.2 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/stretchr/testify v1.9.0 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)

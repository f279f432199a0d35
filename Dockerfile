# The server as an image: one static program, the certificates of authorities,
# and a folder for the data. It runs as nobody in particular. That of a release has the
# same settings (deploy/release/image.go).
#
#   docker build -t hookferry .
#   docker run -p 8080:8080 -v hookferry:/data -e HOOKFERRY_WEBHOOK=https://a.example/hook hookferry
#
# Every flag of serve may be given by environment. deploy/compose.yaml is a whole
# try-out.
FROM --platform=$BUILDPLATFORM golang:1.27 AS build
WORKDIR /src
COPY go.mod go.sum go.work go.work.sum ./
COPY soak/go.mod soak/
COPY cmd/hookferry/go.mod cmd/hookferry/go.sum cmd/hookferry/
COPY webhook/natsqueue/go.mod webhook/natsqueue/go.sum webhook/natsqueue/
COPY webhook/pgqueue/go.mod webhook/pgqueue/go.sum webhook/pgqueue/
COPY webhook/webhookotel/go.mod webhook/webhookotel/go.sum webhook/webhookotel/
COPY webhook/webhookprom/go.mod webhook/webhookprom/go.sum webhook/webhookprom/
RUN go mod download
# With .git, of which the program knows its version.
COPY . .
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -tags grpcnotrace -trimpath -ldflags "-s -w" -o /out/hookferry ./cmd/hookferry \
    && mkdir -m 700 /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /out/data /data
COPY --from=build /out/hookferry /hookferry
USER 65532:65532
ENV HOOKFERRY_DATA=/data
VOLUME /data
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/hookferry", "health"]
ENTRYPOINT ["/hookferry"]
CMD ["serve"]

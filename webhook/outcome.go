package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/hookferry/analytics/webhook/internal/wire"
)

// Reason says why an attempt failed, or why a delivery was given up. There are no reasons but those
// below, so a Reason can be a label of a metric.
type Reason string

const (
	ReasonTimeout     Reason = "timeout"      // no complete answer within the time of one attempt
	ReasonDNS         Reason = "dns"          // the host's name could not be resolved
	ReasonConnection  Reason = "connection"   // refused, reset, closed or unreachable, or not made by Config.Proxy
	ReasonProtocol    Reason = "protocol"     // the answer is not HTTP, or exceeds a size limit
	ReasonRedirect    Reason = "redirect"     // the answer was 3xx, and redirects are not followed
	ReasonThrottled   Reason = "throttled"    // the answer was 408, 425 or 429
	ReasonRefused     Reason = "refused"      // the answer was another 4xx
	ReasonServerError Reason = "server_error" // the answer was 5xx, or of no known class

	// The next three say that no request was sent. ReasonAuthorize is that Destination.Authorize failed,
	// panicked, took all the time of the attempt or returned a header that it may not set.
	ReasonCertificate Reason = "certificate" // it does not verify, or this machine cannot read its roots
	ReasonAddress     Reason = "address"     // the address guard refused the endpoint's address
	ReasonAuthorize   Reason = "authorize"

	ReasonExpired  Reason = "expired"  // the retry window ended before an endpoint took the delivery
	ReasonDisabled Reason = "disabled" // the forwarder has disabled the destination, with Config.BuryDisabled
)

// final reports whether r means that the destination refused the delivery for good.
func (r Reason) final() bool {
	switch r {
	case ReasonCertificate, ReasonAddress, ReasonRedirect, ReasonRefused:
		return true
	}
	return false
}

// statusOutcome returns the outcome and the reason for an answer with this status. One outside the
// range 100 to 599 is like a 5xx (RFC 9110, section 15).
func statusOutcome(status int) (Outcome, Reason) {
	switch {
	case 200 <= status && status <= 299:
		return OutcomeDelivered, ""
	case 300 <= status && status <= 399:
		return OutcomePermanent, ReasonRedirect
	case status == 408, status == 425, status == 429:
		return OutcomeRetryable, ReasonThrottled
	case 400 <= status && status <= 499:
		return OutcomePermanent, ReasonRefused
	case 100 <= status && status <= 199:
		// An interim answer in place of the final one, such as 101.
		return OutcomeRetryable, ReasonProtocol
	default:
		return OutcomeRetryable, ReasonServerError
	}
}

// errorOutcome returns the outcome and the reason for a request without a complete answer.
func errorOutcome(err error) (Outcome, Reason) {
	switch {
	// No request was sent, and the next attempt would be refused, too.
	case isA[*AddressError](err):
		return OutcomePermanent, ReasonAddress
	case isA[x509.SystemRootsError](err): // this machine cannot read its root certificates
		return OutcomeRetryable, ReasonCertificate
	case isA[*tls.CertificateVerificationError](err), isA[x509.UnknownAuthorityError](err),
		isA[x509.HostnameError](err), isA[x509.CertificateInvalidError](err):
		return OutcomePermanent, ReasonCertificate

	case isA[wire.ProxyError](err): // not the endpoint's fault
		return OutcomeRetryable, ReasonConnection
	case isA[*net.DNSError](err):
		return OutcomeRetryable, ReasonDNS
	case errors.Is(err, wire.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return OutcomeRetryable, ReasonTimeout
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return OutcomeRetryable, ReasonTimeout
	}
	if isA[*net.OpError](err) || isA[syscall.Errno](err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return OutcomeRetryable, ReasonConnection
	}
	return OutcomeRetryable, ReasonProtocol
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

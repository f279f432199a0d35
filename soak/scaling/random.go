package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A latency is the distribution of receivers' answer times. If the field median is 0, it is
// exponential with the field mean. Otherwise it is log-normal with the field median, and
// sigma is the standard deviation of the logarithm.
type latency struct {
	median time.Duration
	sigma  float64
	mean   time.Duration // of the exponential distribution
}

func (l latency) sample(random *rand.Rand) time.Duration {
	if l.median == 0 {
		return time.Duration(random.ExpFloat64() * float64(l.mean))
	}
	return time.Duration(float64(l.median) * math.Exp(l.sigma*random.NormFloat64()))
}

// average returns the mean, for Little's law.
func (l latency) average() time.Duration {
	if l.median == 0 {
		return l.mean
	}
	return time.Duration(float64(l.median) * math.Exp(l.sigma*l.sigma/2))
}

// poisson draws from the Poisson distribution. For a mean above 30 it draws from the
// normal distribution, which differs by less than a hundredth of a standard deviation.
func poisson(mean float64, random *rand.Rand) int {
	if mean <= 0 {
		return 0
	}
	if mean > 30 {
		return max(int(mean+math.Sqrt(mean)*random.NormFloat64()+0.5), 0)
	}
	n := 0
	for p := random.ExpFloat64(); p < mean; p += random.ExpFloat64() {
		n++
	}
	return n
}

// least draws the least of n uniform numbers between 0 and 1.
func least(n int, random *rand.Rand) float64 {
	return -math.Expm1(-random.ExpFloat64() / float64(n))
}

// zipf returns the rates of n destinations, the highest first. They are proportional to
// 1/rank^exponent and sum to total. A rate above the argument most is reduced to it, and
// the other destinations share the difference. If most is 0, no rate is reduced.
func zipf(n int, exponent, total, most float64) []float64 {
	rates := make([]float64, n)
	for i := range rates {
		rates[i] = math.Pow(float64(i+1), -exponent)
	}
	for capped := 0; ; {
		sum := 0.0
		for _, r := range slices.Backward(rates[capped:]) { // small ones first, to lose no precision
			sum += r
		}
		scale := (total - float64(capped)*most) / sum
		for i := range rates[capped:] {
			rates[capped+i] *= scale
		}
		before := capped
		for capped < n && most > 0 && rates[capped] > most {
			rates[capped] = most
			capped++
		}
		if capped == before || capped == n {
			return rates
		}
	}
}

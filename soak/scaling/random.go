package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A latency is a distribution of the time that receivers take: log-normal, with
// a median and the standard deviation of its logarithm. Without a median it is
// exponential with a mean.
type latency struct {
	median time.Duration
	sigma  float64
	mean   time.Duration // of the exponential one
}

func (l latency) sample(random *rand.Rand) time.Duration {
	if l.median == 0 {
		return time.Duration(random.ExpFloat64() * float64(l.mean))
	}
	return time.Duration(float64(l.median) * math.Exp(l.sigma*random.NormFloat64()))
}

// average is the mean, as Little's law wants it.
func (l latency) average() time.Duration {
	if l.median == 0 {
		return l.mean
	}
	return time.Duration(float64(l.median) * math.Exp(l.sigma*l.sigma/2))
}

// poisson returns how many events there are where mean are expected. Above 30
// it is a normal distribution rounded, which differs by less than a hundredth
// of a standard deviation.
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

// least returns the least of n numbers between 0 and 1.
func least(n int, random *rand.Rand) float64 {
	return -math.Expm1(-random.ExpFloat64() / float64(n))
}

// zipf returns the rates of n destinations, the highest first, which are
// proportional to 1/rank^exponent and come to total. None is over most; what
// those would have had is shared by the others.
func zipf(n int, exponent, total, most float64) []float64 {
	rates := make([]float64, n)
	for i := range rates {
		rates[i] = math.Pow(float64(i+1), -exponent)
	}
	for capped := 0; ; {
		sum := 0.0
		for _, r := range slices.Backward(rates[capped:]) { // the small first, so that they count
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

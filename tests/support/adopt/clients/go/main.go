// An ordinary franz-go consumer that prints what happens to it, as followers.py does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func say(words ...any) {
	fmt.Println(append([]any{time.Now().UnixMilli()}, words...)...)
}

func told(word string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		words := []any{word}
		for topic, numbers := range parts {
			for _, number := range numbers {
				words = append(words, fmt.Sprintf("%s:%d", topic, number))
			}
		}
		say(words...)
	}
}

func main() {
	address, group, topic, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	balancer := kgo.CooperativeStickyBalancer()
	if os.Args[5] == "range" {
		balancer = kgo.RangeBalancer()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ClientID(name), kgo.Balancers(balancer), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(500*time.Millisecond), kgo.SessionTimeout(6*time.Second),
		kgo.OnPartitionsAssigned(told("assigned")), kgo.OnPartitionsRevoked(told("revoked")),
		kgo.OnPartitionsLost(told("lost")),
	)
	if err != nil {
		panic(err)
	}
	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for stopped.Err() == nil {
		polled, cancel := context.WithTimeout(stopped, 100*time.Millisecond)
		fetches := client.PollFetches(polled)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			say("read", fmt.Sprintf("%s:%d", r.Topic, r.Partition), r.Offset)
		})
		if err := client.CommitRecords(context.Background(), fetches.Records()...); err != nil {
			say("refused")
		}
		client.AllowRebalance()
	}
	client.LeaveGroup()
	client.Close()
	say("bye")
}

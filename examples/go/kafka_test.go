package main

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// TestEndOfOwn: the end of the member's partition is known although another partition has no leader, and the number
// of partitions is that of the topic, also when only some of them have answered.
func TestEndOfOwn(t *testing.T) {
	failure := errors.New("no leader")
	topic := kadm.TopicDetail{Topic: "muster.assignments", Partitions: kadm.PartitionDetails{0: {}, 1: {Err: failure}, 2: {}}}
	answers := map[int32]kadm.ListedOffset{0: {Offset: 10}, 2: {Offset: 12}}
	listed := kadm.ListedOffsets{topic.Topic: answers}
	for _, key := range []string{"g|a", "g|b", "g|c", "g|d", "g|e", "g|f"} {
		partition, end, err := endOfOwn(key, topic, listed, failure)
		switch own := partitionOf(key, 3); {
		case own == 1 && err != failure:
			t.Errorf("%s: %v", key, err)
		case own != 1 && (err != nil || partition != own || end != answers[own].Offset):
			t.Errorf("%s: %d of partition %d, %v", key, end, partition, err)
		}
	}
	if _, _, err := endOfOwn("g|a", kadm.TopicDetail{Err: failure}, nil, nil); err != failure {
		t.Error(err)
	}
}

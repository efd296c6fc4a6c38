'use strict'
// An ordinary KafkaJS consumer that prints what happens to it, as followers.py does.
const { Kafka, logLevel } = require('kafkajs')

const [address, group, topic, name] = process.argv.slice(2)
const kafka = new Kafka({ clientId: name, brokers: [address], logLevel: logLevel.NOTHING })
const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500 })
const say = (...words) => console.log(Date.now(), ...words)
let owned = []

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  owned = (payload.memberAssignment[topic] || []).map(partition => `${topic}:${partition}`)
  say('assigned', ...owned)
})
consumer.on(consumer.events.REBALANCING, () => {
  say('revoked', ...owned)
  owned = []
})

async function main () {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  process.on('SIGTERM', async () => {
    say('revoked', ...owned)
    await consumer.disconnect()
    say('bye')
    process.exit(0)
  })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      say('read', `${topic}:${partition}`, message.offset)
      const offset = (BigInt(message.offset) + 1n).toString()
      try {
        await consumer.commitOffsets([{ topic, partition, offset }])
      } catch (error) {
        say('refused', error.type)
      }
    }
  })
}

main()
